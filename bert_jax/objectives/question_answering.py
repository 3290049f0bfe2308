"""Finds the answer to a question in a text: scores of its first and last token.

The head is that of transformers' `…ForQuestionAnswering`: an output layer on the state of every
token, with dropout before it in DistilBERT's alone. Sizes: B rows, S positions, N examples in a
row.
"""

from functools import partial

import jax
import jax.numpy as jnp

from bert_jax.model.heads import TaskHead
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.objective import Objective, Tensor, transform_tensors
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
    examples_BxS = batch.get("reading_ids", batch["example_ids"])
    own_BxN = jnp.take_along_axis(examples_BxS, batch["cls_positions"], axis=-1)
    inside_BxNxS = examples_BxS[..., None, :] == own_BxN[..., None]
    scores_2xBx1xS = jnp.moveaxis(logits_BxSx2, -1, 0)[..., None, :]
    ends_2xBxN = jnp.stack([batch["answer_starts"], batch["answer_ends"]])
    loss_2xBxN, correct_2xBxN = log_loss(
        jnp.where(inside_BxNxS, scores_2xBx1xS, -jnp.inf), ends_2xBxN
    )
    weights_BxN = batch["answer_weights"]
    return {
        "loss": jnp.sum(loss_2xBxN.mean(0) * weights_BxN),
        "correct": jnp.sum(correct_2xBxN.all(0) * weights_BxN),
        "count": jnp.sum(weights_BxN),
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
