"""Classifies each token, such as the names in a sentence: `…ForTokenClassification`.

Sizes: B rows, S positions, H hidden, C labels.
"""

import jax
from flax import nnx

from bert_jax.config.schema import PhaseConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.model.heads import class_logits
from bert_jax.model.layers import Dense, Keys
from bert_jax.objectives.class_labels import class_baselines, class_sums
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.objective import Objective, States, Tensor
from bert_jax.parallel.global_batch import Batch


class TokenClassifier(nnx.Module):
    """Dropout and an output layer on the state of every token."""

    def __init__(self, config: TaskModelConfig, keys: Keys, outputs: int | None = None):
        """outputs: how many, by default one for each label."""
        self.rate, shape = config.head.dropout, (outputs or len(config.head.labels),)
        self.output = Dense(config, keys, (config.head_width,), shape, ("embed", "classes"))


def token_logits(head: TokenClassifier, states: States, batch: Batch) -> jax.Array:
    """Returns float32 logits [B, S, C]."""
    return class_logits(head.output, states.dropped(states.hidden, head.rate, 0))


def _sums(logits_BxSxC: jax.Array, batch: Batch, corpus: Corpus) -> dict[str, jax.Array]:
    """token_labels: int32 [B, S]; token_weights: float32 [B, S], 0 at tokens without a label."""
    return class_sums(logits_BxSxC, batch["token_labels"], batch["token_weights"])


def token_flops(model: TaskModelConfig, phase: PhaseConfig, outputs: int | None = None) -> float:
    """Returns the FLOPs of the head on every token; outputs: as of `TokenClassifier`."""
    outputs = outputs or len(model.head.labels)
    return 2 * phase.batch_size * phase.row_tokens * model.head_width * outputs


TOKEN_CLASSIFICATION = Objective(
    name="token_classification",
    title="Token classification",
    head="tagger",
    weights="token_weights",
    make_head=TokenClassifier,
    logits=token_logits,
    sums=_sums,
    baselines=class_baselines,
    flops=token_flops,
    tensors=(
        Tensor("tagger.output.kernel", "classifier.weight", 1),
        Tensor("tagger.output.bias", "classifier.bias"),
    ),
    of_task=True,
    head_title="token-classification",
    pipeline="token-classification",
)
