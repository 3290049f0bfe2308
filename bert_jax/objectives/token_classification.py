"""Classifies each token, such as the names in a sentence: `…ForTokenClassification`.

Sizes: B rows, S positions, H hidden, C labels.
"""

import jax

from bert_jax.config.schema import PhaseConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.model.heads import TaskHead, class_logits
from bert_jax.objectives.class_labels import class_baselines, class_sums
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.objective import Objective, States, Tensor, transform_tensors
from bert_jax.objectives.soft_labels import OF_CLASSES
from bert_jax.parallel.global_batch import Batch


def token_logits(head: TaskHead, states: States, batch: Batch) -> jax.Array:
    """Returns float32 logits of every token, [B, S, C]."""
    x_BxSxH = states.dropped(head.transformed(states.hidden), head.config.head.dropout, 0)
    return class_logits(head.output, x_BxSxH)


def _sums(logits_BxSxC: jax.Array, batch: Batch, corpus: Corpus) -> dict[str, jax.Array]:
    """token_labels: int32 [B, S]; token_weights: float32 [B, S], 0 at tokens without a label."""
    return class_sums(logits_BxSxC, batch["token_labels"], batch["token_weights"])


def token_flops(model: TaskModelConfig, phase: PhaseConfig, outputs: int | None = None) -> float:
    """Returns the FLOPs of the head on every token; outputs: as of `TaskHead`."""
    outputs = outputs or len(model.head.labels)
    dense = model.hidden_size**2 if model.head.dense else 0
    return 2 * phase.batch_size * phase.row_tokens * (dense + model.head_width * outputs)


TOKEN_CLASSIFICATION = Objective(
    name="token_classification",
    title="Token classification",
    head="tagger",
    weights="token_weights",
    make_head=TaskHead,
    logits=token_logits,
    sums=_sums,
    baselines=class_baselines,
    soft=OF_CLASSES,
    flops=token_flops,
    tensors=(
        *transform_tensors("tagger"),
        Tensor("tagger.output.kernel", "classifier.weight", 1),
        Tensor("tagger.output.bias", "classifier.bias"),
    ),
    of_task=True,
    head_title="token-classification",
    pipeline="token-classification",
)
