"""Classifies or scores an example from the state of its [CLS].

The heads are those of transformers' `…ForSequenceClassification`, and so are the three objectives,
by the names of its `problem_type`: one label of several, any number of labels, or numbers.

Sizes: B rows, N examples in a row, H hidden, C labels.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config.schema import PhaseConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.model.heads import TaskHead, class_logits
from bert_jax.objectives.class_labels import binary_loss, class_baselines, class_sums, entropy
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.objective import Objective, States, Tensor, transform_tensors
from bert_jax.objectives.soft_labels import OF_CLASSES, OF_LABELS, OF_SCORES, SoftLoss
from bert_jax.parallel.global_batch import Batch


class SequenceClassifier(TaskHead):
    """BERT's reads the pooler: dropout, output layer. The others have a layer in its place, and on
    a frozen encoder it is that of the mean, the first or the largest states of chosen layers."""

    def __call__(self, states: States, cls_positions_BxN: jax.Array) -> jax.Array:
        """Returns float32 logits [B, N, C]."""
        head = self.config.head
        if head.dense is None:
            x_BxNxH = states.pooled(cls_positions_BxN)
        else:
            x_BxNxH = states.of_texts(cls_positions_BxN, head.pools).astype(states.hidden.dtype)
            if head.drops_input:
                x_BxNxH = states.dropped(x_BxNxH, head.dropout, 0)
            x_BxNxH = self.transformed(x_BxNxH)
        return class_logits(self.output, states.dropped(x_BxNxH, head.dropout, 1))


def sequence_logits(head: SequenceClassifier, states: States, batch: Batch) -> jax.Array:
    """Returns float32 logits of each sequence, [B, N, C]."""
    return head(states, batch["cls_positions"])


def _single_label_sums(logits_BxNxC: jax.Array, batch: Batch, corpus: Corpus) -> dict:
    """labels: int32 [B, N]."""
    return class_sums(logits_BxNxC, batch["labels"], batch["label_weights"])


def _multi_label_sums(logits_BxNxC: jax.Array, batch: Batch, corpus: Corpus) -> dict:
    """Binary cross-entropy, the mean over labels; `correct` is the share of right labels.

    labels: float32 [B, N, C], 0 or 1.
    """
    x, y, weights_BxN = logits_BxNxC, batch["labels"], batch["label_weights"]
    return {
        "loss": jnp.sum(binary_loss(x, y).mean(-1) * weights_BxN),
        "correct": jnp.sum(((x > 0) == (y > 0.5)).mean(-1) * weights_BxN),
        "count": jnp.sum(weights_BxN),
        "labels": jnp.einsum("...nc,...n->c", y, weights_BxN),
    }


def _multi_label_baselines(sums: Mapping[str, Any], sources: Sequence[str]) -> dict[str, float]:
    """Returns accuracy and loss of the best constant prediction of each label."""
    total = max(float(sums["count"]), 1.0)
    counts = [np.array([n, total - n]) for n in np.asarray(sums["labels"], np.float64)]
    return {
        "baseline_accuracy": float(np.mean([n.max() for n in counts]) / total),
        "baseline_loss": float(np.mean([entropy(n) for n in counts]) / total),
    }


def _regression_sums(logits_BxNxC: jax.Array, batch: Batch, corpus: Corpus) -> dict:
    """Squared error, the mean over outputs; labels: float32 [B, N, C]."""
    labels_BxNxC, weights_BxN = batch["labels"], batch["label_weights"]
    return {
        "loss": jnp.sum(jnp.square(logits_BxNxC - labels_BxNxC).mean(-1) * weights_BxN),
        "count": jnp.sum(weights_BxN),
        "labels": jnp.einsum("...nc,...n->c", labels_BxNxC, weights_BxN),
        "squares": jnp.einsum("...nc,...n->c", jnp.square(labels_BxNxC), weights_BxN),
    }


def _regression_baselines(sums: Mapping[str, Any], sources: Sequence[str]) -> dict[str, float]:
    """Returns the loss of the best constant prediction, the variance."""
    total = max(float(sums["count"]), 1.0)
    labels, squares = (np.asarray(sums[name], np.float64) for name in ("labels", "squares"))
    return {"baseline_loss": float(np.mean(squares / total - np.square(labels / total)))}


def classifier_flops(
    model: TaskModelConfig, phase: PhaseConfig, outputs: int | None = None
) -> float:
    H, examples = model.hidden_size, phase.batch_size * phase.examples_per_row
    dense = 0 if model.head.layers else H * H
    return 2 * examples * (dense + model.head_width * (outputs or len(model.head.labels)))


def _objective(
    name: str, title: str, sums: Callable, baselines: Callable, soft: SoftLoss
) -> Objective:
    """Returns an objective with the classifier, of which a model has at most one."""
    return Objective(
        name=name,
        title=title,
        head="classifier",
        weights="label_weights",
        make_head=SequenceClassifier,
        logits=sequence_logits,
        sums=sums,
        baselines=baselines,
        soft=soft,
        flops=classifier_flops,
        needs_pooler=reads_pooler,
        # The names of RoBERTa, since BERT's own are those of its token classifier, too.
        tensors=(
            *transform_tensors("classifier"),
            Tensor("classifier.output.kernel", "classifier.out_proj.weight", 1),
            Tensor("classifier.output.bias", "classifier.out_proj.bias"),
        ),
        of_task=True,
        head_title="sequence-classification",
        pipeline="text-classification",
    )


def reads_pooler(config: TaskModelConfig) -> bool:
    return config.head.dense is None and not config.head.layers


SINGLE_LABEL = _objective(
    "single_label_classification", "Classification", _single_label_sums, class_baselines, OF_CLASSES
)
MULTI_LABEL = _objective(
    "multi_label_classification",
    "Multi-label classification",
    _multi_label_sums,
    _multi_label_baselines,
    OF_LABELS,
)
REGRESSION = _objective(
    "regression", "Regression", _regression_sums, _regression_baselines, OF_SCORES
)
