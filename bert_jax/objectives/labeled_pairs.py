"""Classifies two texts from their vectors u and v: a softmax over W [u; v; |u - v|] + b.

SBERT's training on NLI (Reimers and Gurevych 2019, section 3; sentence-transformers' SoftmaxLoss,
which has the bias). The vectors are what is used afterwards, so that an export has no such head.
Sizes: B rows, N examples in a row, H hidden, C labels, W widths of the vectors.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config.schema import PhaseConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.model.layers import Dense, Keys
from bert_jax.objectives.class_labels import class_baselines, class_sums
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.objective import Objective, States
from bert_jax.objectives.sentence_vectors import (
    SentenceHead,
    dense_flops,
    settings_of,
    unit,
    width_axis,
    widths,
)
from bert_jax.objectives.soft_labels import OF_CLASSES, SoftLoss, softmax
from bert_jax.parallel.global_batch import Batch


class PairClassifier(SentenceHead):
    """An output layer on the vectors of both texts and their difference."""

    def __init__(self, config: TaskModelConfig, keys: Keys):
        super().__init__(config, keys)
        shapes = (3 * config.head_width,), (len(config.head.labels),)
        axes = (width_axis(config), "classes")
        self.output = Dense(config, keys, *shapes, axes, config.head_scale)

    def __call__(self, states: States, batch: Batch) -> jax.Array:
        """Returns float32 logits [B, N, W, C], at the whole width first."""
        settings, x = settings_of(self.config), self.vectors(states, batch)
        return pair_logits(
            x.reshape(len(x), -1, 2, x.shape[-1]),
            self.output.kernel[...],
            self.output.bias[...],
            widths(settings, x.shape[-1]),
            normalize=settings.normalize,
        )


def pair_logits(
    x_BxNx2xH: jax.Array,
    kernel: jax.Array,
    bias_C: jax.Array,
    sizes: Sequence[int],
    *,
    normalize: bool,
) -> jax.Array:
    """Returns logits [B, N, W, C]; at a width, the kernel has the rows of the numbers that the
    vectors have left.

    Args:
        kernel: [3H, C], of u, v and |u - v| one after the other.
        sizes: the widths.
        normalize: whether the vectors of each width are divided by their lengths.
    """
    H = x_BxNx2xH.shape[-1]
    logits = []
    for width in sizes:
        x = x_BxNx2xH[..., :width]
        u, v = jnp.moveaxis(unit(x) if normalize else x, -2, 0)
        joined_BxNxF = jnp.concatenate([u, v, jnp.abs(u - v)], -1)
        rows = kernel.astype(jnp.float32).reshape(3, H, -1)[:, :width].reshape(3 * width, -1)
        product = jnp.einsum("bnf,fc->bnc", joined_BxNxF, rows, precision=jax.lax.Precision.HIGHEST)
        logits.append(product + bias_C[None, None])
    return jnp.stack(logits, axis=2)


def _sums(logits: jax.Array, batch: Batch, corpus: Corpus) -> dict[str, jax.Array]:
    """labels: int32 [B, N]; pair_weights: float32 [B, N]; the loss is the sum over the widths."""
    labels, weights, sizes = batch["labels"], batch["pair_weights"], logits.shape[-2]
    each = [class_sums(logits[..., i, :], labels, weights) for i in range(sizes)]
    loss = sum((one["loss"] for one in each), jnp.float32(0))
    return {**each[0], "loss": loss, "widths": sizes * each[0]["count"]}


def _baselines(sums: Mapping[str, Any], sources: Sequence[str]) -> dict[str, float]:
    """Returns accuracy and loss of the best constant prediction, at each width."""
    found, sizes = class_baselines(sums, sources), sums["widths"] / max(sums["count"], 1)
    return {**found, "baseline_loss": float(sizes) * found["baseline_loss"]}


def _soft_sums(logits: jax.Array, batch: Batch, weights: jax.Array, temperature: float) -> dict:
    """The loss is the sum over the widths, each against all that the teacher says; its
    probabilities: float32 [B, N, C]."""
    widths_of = [logits[..., i, :] for i in range(logits.shape[-2])]
    each = [OF_CLASSES.sums(one, batch, weights, temperature) for one in widths_of]
    loss = sum((one["teacher_loss"] for one in each), jnp.float32(0))
    return {**each[0], "teacher_loss": loss}


def _soft_baselines(sums: Mapping[str, Any], count: float) -> dict[str, float]:
    """Returns divergence and agreement of the best constant prediction, at each width."""
    found, sizes = OF_CLASSES.baselines(sums, count), float(sums["widths"]) / count
    return {**found, "baseline_teacher_loss": sizes * found["baseline_teacher_loss"]}


def _flops(model: TaskModelConfig, phase: PhaseConfig) -> float:
    examples = phase.batch_size * phase.examples_per_row
    output = 2.0 * examples * 3 * model.head_width * len(model.head.labels)
    return dense_flops(model, phase) + output


LABELED_PAIRS = Objective(
    name="labeled_pairs",
    title="Labeled pairs",
    head="pair_classifier",
    weights="pair_weights",
    make_head=PairClassifier,
    logits=lambda head, states, batch: head(states, batch),
    sums=_sums,
    baselines=_baselines,
    flops=_flops,
    tensors=(),
    of_task=True,
    soft=SoftLoss(softmax, _soft_sums, _soft_baselines),
    head_title="pair-classification",
)
