"""Finds the answer to a question in a text: scores of its first and last token.

The head is that of transformers' `…ForQuestionAnswering`: an output layer on the state of every
token, with dropout before it in DistilBERT's alone. Sizes: B rows, S positions, N examples in a
row.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.heads import TaskHead
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.objective import Objective, Tensor, transform_tensors
from bert_jax.objectives.soft_labels import (
    TEACHER,
    SoftLoss,
    Sums,
    divergence,
    entropy,
    softmax,
)
from bert_jax.objectives.token_classification import token_flops, token_logits
from bert_jax.ops.cross_entropy import log_loss
from bert_jax.parallel.global_batch import Batch


def _sums(logits_BxSx2: jax.Array, batch: Batch, corpus: Corpus) -> dict[str, jax.Array]:
    """Returns sums over examples; a `correct` answer has the right first and last token.

    The probabilities are over the tokens of the example, so that packing and padding do not change
    the loss. In run_squad.py and transformers they are over the whole padded row of S positions, so
    that before a model has learned the loss is about log S whatever an example's n tokens, here
    log n, and some of the gradient teaches that padding is no answer. With `reading_ids` in the
    batch they are over the row here, too. answer_starts, answer_ends: int32 [B, N], positions in
    the row; answer_weights: float32 [B, N].
    """
    inside_BxNxS = _inside(batch)
    ends_2xBxN = jnp.stack([batch["answer_starts"], batch["answer_ends"]])
    loss_2xBxN, correct_2xBxN = log_loss(
        jnp.where(inside_BxNxS, _by_end(logits_BxSx2), -jnp.inf), ends_2xBxN
    )
    weights_BxN = batch["answer_weights"]
    return {
        "loss": jnp.sum(loss_2xBxN.mean(0) * weights_BxN),
        "correct": jnp.sum(correct_2xBxN.all(0) * weights_BxN),
        "count": jnp.sum(weights_BxN),
    }


def _inside(batch: Batch) -> jax.Array:
    """Returns which positions are of each example, bool [B, N, S]."""
    examples_BxS = batch.get("reading_ids", batch["example_ids"])
    own_BxN = jnp.take_along_axis(examples_BxS, batch["cls_positions"], axis=-1)
    return examples_BxS[..., None, :] == own_BxN[..., None]


def _by_end(x_BxSx2: jax.Array) -> jax.Array:
    """Returns what first and last tokens have, [2, B, 1, S]."""
    return jnp.moveaxis(x_BxSx2, -1, 0)[..., None, :]


def _soft_sums(
    logits_BxSx2: jax.Array, batch: Batch, weights_BxN: jax.Array, temperature: float
) -> Sums:
    """The mean over first and last token of the divergence over the tokens of an example; its
    baselines are even probabilities over them, and [CLS], the only token that all examples have.

    teacher: float32 [B, S, 2], of first and last tokens; those of an example add up to 1.
    """
    inside_BxNxS = _inside(batch)
    scores_2xBxNxS = jnp.where(inside_BxNxS, _by_end(logits_BxSx2) / temperature, -jnp.inf)
    teacher_2xBxNxS = jnp.where(inside_BxNxS, _by_end(batch[TEACHER]), 0)
    loss_2xBxN = divergence(scores_2xBxNxS, teacher_2xBxNxS)
    guess_2xBxN = teacher_2xBxNxS.argmax(-1)
    same_2xBxN = scores_2xBxNxS.argmax(-1) == guess_2xBxN
    at_cls_2xBxN = guess_2xBxN == batch["cls_positions"][None]
    even_BxN = jnp.log(inside_BxNxS.sum(-1)) - entropy(teacher_2xBxNxS).mean(0)
    return {
        "teacher_loss": jnp.sum(loss_2xBxN.mean(0) * weights_BxN),
        "teacher_correct": jnp.sum(same_2xBxN.all(0) * weights_BxN),
        "teacher_even": jnp.sum(even_BxN * weights_BxN),
        "teacher_first": jnp.sum(at_cls_2xBxN.all(0) * weights_BxN),
    }


def _soft_baselines(sums: Mapping[str, Any], count: float) -> dict[str, float]:
    return {
        "baseline_teacher_loss": float(sums["teacher_even"]) / count,
        "baseline_teacher_agreement": float(sums["teacher_first"]) / count,
    }


QUESTION_ANSWERING = Objective(
    name="question_answering",
    title="Question answering",
    head="qa",
    weights="answer_weights",
    make_head=partial(TaskHead, outputs=2),  # of the first and of the last token
    logits=token_logits,
    sums=_sums,
    baselines=lambda sums, sources: {},
    soft=SoftLoss(softmax, _soft_sums, _soft_baselines),
    flops=partial(token_flops, outputs=2),
    tensors=(
        *transform_tensors("qa"),
        Tensor("qa.output.kernel", "qa_outputs.weight", 1),
        Tensor("qa.output.bias", "qa_outputs.bias"),
    ),
    of_task=True,
    head_title="question-answering",
    labels=2,  # start and end
    pipeline="question-answering",
)
