"""Floating-point operations of a training step; `step_metrics` divides them by the peak (MFU)."""

from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.config.task_model import probe_of
from bert_jax.objectives.known_objectives import find, learned_by
from bert_jax.ops.attention import local


def step_flops(config: Config, phase: PhaseConfig) -> float:
    """Model FLOPs of one training step: matrix multiplications only, padding included.

    Forward plus backward is three times the forward pass, which a frozen encoder alone has; a
    product of [m, k] and [k, n] is 2mkn.
    Gradient accumulation does not change the count; recomputation by rematerialization is excluded.
    """
    model = config.model
    H, I = model.hidden_size, model.intermediate_size  # noqa: E741
    tokens = phase.batch_size * phase.row_tokens
    dense = 2 * tokens * (4 * H * H + (3 if model.gated_mlp else 2) * H * I)
    seen = (
        local.keys_per_query(phase.row_tokens, model.local_attention)
        if model.is_local(layer)
        else phase.row_tokens
        for layer in range(model.num_hidden_layers)
    )
    layers = sum(dense + 4 * tokens * keys * H for keys in seen)
    projection = 2 * tokens * model.embedding_size * H
    learned = find(learned_by(config))
    heads = sum(objective.flops(model, phase) for objective in learned)
    encoder = (1.0 if probe_of(model) else 3.0) * (layers + projection)
    return encoder + 3.0 * heads
