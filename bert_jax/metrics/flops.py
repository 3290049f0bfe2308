"""Floating-point operations of a training step; `step_metrics` divides them by the peak (MFU)."""

import dataclasses

from bert_jax.config.model_settings import generator_of
from bert_jax.config.schema import Config, ModelConfig, PhaseConfig
from bert_jax.config.task_model import probe_of
from bert_jax.objectives.denoising import DENOISING
from bert_jax.objectives.known_objectives import find, learned_by
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.replaced_tokens import REPLACED_TOKENS
from bert_jax.ops.attention import local


def step_flops(config: Config, phase: PhaseConfig, teacher: ModelConfig | None = None) -> float:
    """Model FLOPs of one training step: matrix multiplications only, padding included.

    Forward plus backward is three times the forward pass, which a frozen encoder and a teacher
    alone have; a product of [m, k] and [k, n] is 2mkn.
    Gradient accumulation does not change the count; recomputation by rematerialization is excluded.

    Args:
        teacher: that the step learns from.
    """
    model, seen = config.model, phase
    if teacher and config.distillation.positions == "all":  # the head and the teacher look at
        seen = dataclasses.replace(phase.without_own(), max_predictions=phase.seq_length)
    learned = find(learned_by(config))
    encoder = (1.0 if probe_of(model) else 3.0) * encoder_flops(model, phase)
    of_words = model  # the network with the masked-token head
    if REPLACED_TOKENS in learned:
        of_words = generator_of(model)
        encoder += 3.0 * encoder_flops(of_words, phase)
    encoder *= 2.0 if DENOISING in learned else 1.0  # its layers decode, too
    heads = sum(one.flops(of_words if one is MASKED_LM else model, seen) for one in learned)
    of_teacher = 0.0
    if teacher:
        of_teacher = encoder_flops(teacher, phase) + MASKED_LM.flops(teacher, seen)
        compared = phase.batch_size * seen.row_predictions  # states, brought to the teacher's width
        heads += 2 * compared * model.hidden_size * model.teacher_width
    return encoder + 3.0 * heads + of_teacher


def encoder_flops(model: ModelConfig, phase: PhaseConfig) -> float:
    """FLOPs of an encoder's forward pass over a batch, counted as in `step_flops`."""
    H, I = model.hidden_size, model.intermediate_size  # noqa: E741
    tokens = phase.batch_size * phase.row_tokens
    dense = 2 * tokens * (4 * H * H + (3 if model.gated_mlp else 2) * H * I)
    S = phase.row_tokens
    pairs = (
        local.pairs(S, model.local_attention) if model.is_local(layer) else S * S
        for layer in range(model.num_hidden_layers)
    )
    layers = sum(dense + 4 * phase.batch_size * of_row * H for of_row in pairs)
    return layers + 2 * tokens * model.embedding_size * H
