"""Chooses one of several texts, such as the endings of a story: `…ForMultipleChoice`.

Each choice is a sequence of its own, with what it is a choice for; the head gives each a score, and
the loss is that of a softmax over the choices of an example. Sizes: B rows, N examples in a row,
C choices of each.
"""

from functools import partial

import jax

from bert_jax.objectives.class_labels import class_baselines, class_sums
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.objective import Objective, Tensor, transform_tensors
from bert_jax.objectives.sequence_classification import (
    SequenceClassifier,
    classifier_flops,
    reads_pooler,
    sequence_logits,
)
from bert_jax.objectives.soft_labels import OF_CLASSES
from bert_jax.parallel.global_batch import Batch


def _sums(scores: jax.Array, batch: Batch, corpus: Corpus) -> dict[str, jax.Array]:
    """choices: int32 [B, N], the right one; choice_weights: float32 [B, N]."""
    choices_BxN = batch["choices"]
    logits_BxNxC = scores.reshape(*choices_BxN.shape, -1)
    return class_sums(logits_BxNxC, choices_BxN, batch["choice_weights"])


MULTIPLE_CHOICE = Objective(
    name="multiple_choice",
    title="Multiple choice",
    head="choice",
    weights="choice_weights",
    make_head=partial(SequenceClassifier, outputs=1),
    logits=sequence_logits,  # a score for each sequence, [B, N·C, 1]
    sums=_sums,
    baselines=class_baselines,
    soft=OF_CLASSES,
    flops=partial(classifier_flops, outputs=1),
    needs_pooler=reads_pooler,
    outputs=1,
    tensors=(
        # ELECTRA's has another name than that of its classifier.
        *transform_tensors("choice", "choice"),
        Tensor("choice.output.kernel", "classifier.weight", 1),
        Tensor("choice.output.bias", "classifier.bias"),
    ),
    of_task=True,
    head_title="multiple-choice",
)
