"""Learns that the cosine of two texts' vectors is their score.

`cosine`: the squared error of the cosine, SBERT's regression (Reimers and Gurevych 2019, section
3). `cosent`: a pair with a higher score has a higher cosine,

    log(1 + sum over all pairs of examples with score_i > score_j of exp(scale · (cos_j - cos_i))),

which compares the examples of the global batch (J. Su 2022; sentence-transformers' CoSENTLoss).
Sizes: R examples of this device, M of the global batch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.sentence_vectors import (
    SentenceHead,
    Vectors,
    cosines,
    dense_flops,
    sentence_vectors,
    widths,
)
from bert_jax.objectives.soft_labels import OF_SCORES, TEACHER, SoftLoss
from bert_jax.parallel.collectives import gather_rows
from bert_jax.parallel.global_batch import Batch

# Of a pair that is not compared: exp of it is 0, and unlike that of -inf its gradient is defined.
_LEFT_OUT = -1e9


def cosent_loss(
    cosine_R: jax.Array, score_R: jax.Array, weights_R: jax.Array, scale: float
) -> jax.Array:
    """Returns the loss of the examples of all devices, a scalar that all of them have.

    A device compares its own examples with all. Its gradient is its part of that of the sum of what
    the devices return.
    """
    cosine_M, score_M, weights_M = map(gather_rows, (cosine_R, score_R, weights_R))
    higher = score_R[:, None] > score_M[None]
    compared = higher & (weights_R[:, None] * weights_M[None] > 0)
    gaps_RxM = scale * (cosine_M[None] - cosine_R[:, None])
    total_R = jax.nn.logsumexp(jnp.where(compared, gaps_RxM, _LEFT_OUT), axis=-1)
    return jax.nn.logsumexp(jnp.concatenate([jnp.zeros(1), gather_rows(total_R)]))


def _sums(vectors: Vectors, batch: Batch, corpus: Corpus) -> dict[str, jax.Array]:
    """scores: float32 [B, N], 0 to 1; pair_weights: float32 [B, N].

    The loss of CoSENT is not a sum over examples: it counts once for each.
    """
    scores, weights, settings = batch["scores"], batch["pair_weights"], vectors.settings
    x, count = vectors.of_examples(scores), jnp.sum(weights)
    loss = jnp.float32(0)
    for width in widths(settings, x.shape[-1]):
        cosine = cosines(x[..., 0, :width], x[..., 1, :width])
        if settings.loss == "cosent":
            flat = [value.reshape(-1) for value in (cosine, scores, weights)]
            loss += cosent_loss(flat[0], flat[1], flat[2], settings.scale) * count
        else:
            loss += jnp.sum(jnp.square(cosine - scores) * weights)
    if settings.loss == "cosent":
        return {"loss": loss, "count": count}
    return {
        "loss": loss,
        "count": count,
        "scores": jnp.sum(scores * weights),
        "squares": jnp.sum(jnp.square(scores) * weights),
        "widths": count * len(widths(settings, x.shape[-1])),
    }


def _baselines(sums: Mapping[str, Any], sources: Sequence[str]) -> dict[str, float]:
    """Returns the loss of the best constant cosine, the variance of the scores at each width; none
    for CoSENT."""
    if "squares" not in sums:
        return {}
    total = max(float(sums["count"]), 1.0)
    mean, square, sizes = (float(sums[name]) / total for name in ("scores", "squares", "widths"))
    return {"baseline_loss": sizes * (square - mean**2)}


def _soft_sums(
    vectors: Vectors, batch: Batch, weights: jax.Array, temperature: float
) -> dict[str, jax.Array]:
    """The squared error to the teacher's cosine, float32 [B, N, 1], at each width."""
    wanted = batch[TEACHER][..., 0]
    x, loss = vectors.of_examples(wanted), jnp.float32(0)
    for width in widths(vectors.settings, x.shape[-1]):
        cosine = cosines(x[..., 0, :width], x[..., 1, :width])
        loss += jnp.sum(jnp.square(cosine - wanted) * weights)
    return {
        "teacher_loss": loss,
        "teacher_sum": jnp.sum(wanted * weights),
        "teacher_squares": jnp.sum(jnp.square(wanted) * weights),
    }


def _soft_baselines(sums: Mapping[str, Any], count: float) -> dict[str, float]:
    """Returns the variance of the teacher's cosines, at each width."""
    names = ("teacher_sum", "teacher_squares", "widths")
    mean, square, sizes = (float(sums[name]) / count for name in names)
    return {"baseline_teacher_loss": sizes * (square - mean**2)}


SCORED_PAIRS = Objective(
    name="scored_pairs",
    title="Scored pairs",
    head="pair_score",
    weights="pair_weights",
    make_head=SentenceHead,
    logits=sentence_vectors,
    sums=_sums,
    baselines=_baselines,
    flops=dense_flops,
    tensors=(),
    of_task=True,
    head_title="sentence-vector",
    soft=SoftLoss(OF_SCORES.targets, _soft_sums, _soft_baselines, softens=False),
    across_rows=lambda config: config.head.vectors.loss == "cosent",
)
