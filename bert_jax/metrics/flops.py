"""FLOPs of a training step, and the estimated time remaining."""

from bert_jax.config.schema import Config, PhaseConfig

_SBO_POSITION = 200  # width of the relative position embeddings of the span boundary head


def step_flops(config: Config, phase: PhaseConfig) -> float:
    """Model FLOPs of one training step: matrix multiplications only, padding included.

    Forward plus backward is three times the forward pass; a product of [m, k] and [k, n] is 2mkn.
    Gradient accumulation does not change the count; recomputation by rematerialization is excluded.
    """
    model = config.model
    H, I, V = model.hidden_size, model.intermediate_size, model.vocab_size  # noqa: E741
    tokens = phase.batch_size * phase.row_tokens
    slots = phase.batch_size * phase.row_predictions
    layer = 2 * tokens * (4 * H * H + 2 * H * I) + 4 * tokens * phase.row_tokens * H
    heads = {
        "mlm": 2 * slots * (H * H + H * V),
        "sbo": 2 * slots * ((2 * H + _SBO_POSITION) * H + H * H + H * V),
    }
    pairs = 2 * phase.batch_size * phase.examples_per_row * (H * H + 2 * H)
    head = sum(heads.get(objective, pairs) for objective in config.objectives)
    return 3.0 * (model.num_hidden_layers * layer + head)


def seconds_left(config: Config, step: int, step_seconds: float) -> float:
    """Seconds remaining after `step` updates, the last of which took `step_seconds`.

    Assumes that later phases run at the same FLOPs per second.
    """
    if step >= config.total_steps:
        return 0.0
    current, _ = config.phase_at(max(step - 1, 0))
    current_flops = step_flops(config, config.phases[current])
    index, local = config.phase_at(step)
    remaining = -local * step_flops(config, config.phases[index])
    remaining += sum(p.steps * step_flops(config, p) for p in config.phases[index:])
    return step_seconds * remaining / current_flops
