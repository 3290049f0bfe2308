"""Chooses the positive of an anchor among the candidates of the global batch.

The loss of sentence-transformers' MultipleNegativesRankingLoss (Henderson et al. 2017, arXiv
1705.00652, section 4): cross-entropy over scale · cosine. The candidates of an anchor are the
positives of all examples and their columns of hard negatives. With both directions, each positive
chooses its anchor in a softmax of its own, and the loss is the mean, as with `directions=
("query_to_doc", "doc_to_query"), partition_mode="per_direction"` there.

Equal texts are no negatives, which sentence-transformers leaves to its sampler of batches: see
`is_candidate`. Sizes: R examples of this device, M of the global batch, C texts of an example, the
anchor, the positive and the negatives, K candidates, D numbers of a vector.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config.schema import PhaseConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.sentence_vectors import (
    SentenceHead,
    Vectors,
    all_cosines,
    dense_flops,
    sentence_vectors,
    widths,
)
from bert_jax.ops.cross_entropy import log_loss
from bert_jax.parallel.collectives import gather_rows, global_row_offset
from bert_jax.parallel.global_batch import Batch
from bert_jax.parallel.partition import constrain_batch


def is_candidate(anchor_R: Any, all_MxC: Any, index_R: Any, xp: Any = jnp) -> Any:
    """Returns which candidates an anchor has, bool [R, M·(C - 1)]: the positives of all examples,
    then each column of negatives.

    Its own positive is always one. No other text is one that equals the anchor, or a positive of
    any example with the same anchor. An empty slot has no candidates.

    Args:
        anchor_R: numbers of the anchors, equal for equal texts.
        all_MxC: those of all texts of all examples, 0 where there is none.
        index_R: each example among all.
        xp: the module of the arrays, jax.numpy or numpy.
    """
    anchor_Rx1, text_K = anchor_R[:, None], all_MxC[:, 1:].T.reshape(-1)
    known_RxK = _is_pair(anchor_Rx1, text_K, all_MxC[:, 0], all_MxC[:, 1], xp)
    found = (text_K > 0)[None] & (text_K[None] != anchor_Rx1) & ~known_RxK
    return found | (index_R[:, None] == xp.arange(len(text_K))[None])


def is_anchor(positive_R: jax.Array, all_MxC: jax.Array, index_R: jax.Array) -> jax.Array:
    """Returns which anchors a positive chooses from, bool [R, M]: its own, and those that equal
    neither this positive nor an anchor of any example with the same positive; as `is_candidate`."""
    positive_Rx1, anchor_M = positive_R[:, None], all_MxC[:, 0]
    known_RxM = _is_pair(positive_Rx1, anchor_M, all_MxC[:, 1], anchor_M, jnp)
    found = (anchor_M > 0)[None] & (anchor_M[None] != positive_Rx1) & ~known_RxM
    return found | (index_R[:, None] == jnp.arange(len(anchor_M))[None])


def _is_pair(own_Rx1: Any, text_K: Any, own_M: Any, other_M: Any, xp: Any) -> Any:
    """Returns whether any example has an own text and another one as its pair, bool [R, K], without
    an array [M, K]: counts, of the examples in the order of `other`, those with the own text."""
    order_M = xp.argsort(other_M)
    count_RxM = xp.cumsum(own_Rx1 == own_M[order_M][None], 1, dtype=xp.int32)
    before = xp.concatenate([xp.zeros_like(count_RxM[:, :1]), count_RxM], 1)
    first_K, end_K = (
        xp.searchsorted(other_M[order_M], text_K, side=side) for side in ("left", "right")
    )
    return before[:, end_K] > before[:, first_K]


def choice_loss(
    x_RxD: jax.Array, y_KxD: jax.Array, allowed_RxK: jax.Array, right_R: jax.Array, scale: float
) -> tuple[jax.Array, jax.Array]:
    """Returns -log p of the right candidate of each vector, nats, float32 [R], and whether none of
    the others has a higher cosine, bool [R]; p: a softmax over scale · cosine of those allowed."""
    scores_RxK = jnp.where(allowed_RxK, scale * all_cosines(x_RxD, y_KxD), -jnp.inf)
    return log_loss(scores_RxK, right_R)


def _sums(vectors: Vectors, batch: Batch, corpus: Corpus) -> dict[str, jax.Array]:
    """texts: int32 [B, N, C], equal for equal texts, 0 in an empty slot; pair_weights: float32
    [B, N].

    A device has its own examples and the vectors of all, so its scores are [R, K]. `correct`: at
    the whole width, by the anchor. `even` is the loss of equal scores.
    """
    weights_R, settings = batch["pair_weights"].reshape(-1), vectors.settings
    own_RxC = batch["texts"].reshape(len(weights_R), -1)
    x_RxCxD = constrain_batch(vectors.values.reshape(*own_RxC.shape, -1))
    all_MxC, y_MxCxD = gather_rows(own_RxC), gather_rows(x_RxCxD)
    (R, _), D = own_RxC.shape, x_RxCxD.shape[-1]
    index_R = global_row_offset(R) + jnp.arange(R)
    # (what chooses, the candidates, which are allowed), by direction
    y_KxD = y_MxCxD[:, 1:].swapaxes(0, 1).reshape(-1, D)
    ways = [(x_RxCxD[:, 0], y_KxD, is_candidate(own_RxC[:, 0], all_MxC, index_R))]
    if settings.directions == "both":
        allowed_RxM = is_anchor(own_RxC[:, 1], all_MxC, index_R)
        ways.append((x_RxCxD[:, 1], y_MxCxD[:, 0], allowed_RxM))
    loss_R, even_R, correct_R = jnp.zeros(R), jnp.zeros(R), None
    for x_RxD, y, allowed in ways:
        even_R += jnp.log(allowed.sum(-1))
        for width in widths(settings, D):
            own_loss_R, own_correct_R = choice_loss(
                x_RxD[:, :width], y[:, :width], allowed, index_R, settings.scale
            )
            loss_R += own_loss_R
            correct_R = own_correct_R if correct_R is None else correct_R
    assert correct_R is not None
    return {
        "loss": jnp.sum(loss_R * weights_R) / len(ways),
        "correct": jnp.sum(correct_R * weights_R),
        "even": jnp.sum(even_R * weights_R) / len(ways) * len(widths(settings, D)),
        "count": jnp.sum(weights_R),
    }


def _baselines(sums: Mapping[str, Any], sources: Sequence[str]) -> dict[str, float]:
    """Returns the loss of equal scores for all candidates."""
    return {"baseline_loss": float(sums["even"]) / max(float(sums["count"]), 1.0)}


def _flops(model: TaskModelConfig, phase: PhaseConfig) -> float:
    """Dense layers and scores: without hard negatives, whose number is the data's."""
    examples = phase.batch_size * phase.examples_per_row
    return dense_flops(model, phase) + 2.0 * examples * examples * model.head_width


IN_BATCH_NEGATIVES = Objective(
    name="in_batch_negatives",
    title="In-batch negatives",
    head="pair_ranking",
    weights="pair_weights",
    make_head=SentenceHead,
    logits=sentence_vectors,
    sums=_sums,
    baselines=_baselines,
    flops=_flops,
    tensors=(),
    of_task=True,
    head_title="sentence-vector",
    across_rows=lambda config: True,
)
