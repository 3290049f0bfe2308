"""Shared by next-sentence and sentence-order prediction: two classes from [CLS].

Sizes: B rows, N examples in a row, H hidden, C sources.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config.schema import ModelConfig, PhaseConfig
from bert_jax.model.heads import class_logits
from bert_jax.model.layers import Dense, Keys
from bert_jax.objectives.class_labels import constant_rows, entropy
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.objective import Objective, States, Tensor
from bert_jax.ops.cross_entropy import log_loss
from bert_jax.parallel.global_batch import Batch


def sentence_pair(name: str, title: str, *, task: str, head_title: str, card: str) -> Objective:
    """Returns an objective with the pair head, of which a model has at most one."""
    return Objective(
        name=name,
        title=title,
        head="pair",
        weights="pair_weights",
        has_labels=lambda data: data.pairing == name,
        make_head=_make_head,
        logits=_logits,
        sums=pair_sums,
        baselines=_baselines,
        baseline_rows=lambda rows: constant_rows(rows["source_labels"].sum(1)),
        flops=_flops,
        needs_pooler=lambda config: True,
        tensors=(
            Tensor("pair.kernel", "cls.seq_relationship.weight", 1),
            Tensor("pair.bias", "cls.seq_relationship.bias"),
        ),
        task=task,
        head_title=head_title,
        card=card,
        pytorch="""\
pooled = {pooled}
logits = dense("{pair}", pooled)  # of 0 and of 1
""",
    )


def _make_head(config: ModelConfig, keys: Keys) -> Dense:
    return Dense(config, keys, (config.hidden_size,), (2,), ("embed", "classes"))


def _logits(head: Dense, states: States, batch: Batch) -> jax.Array:
    """Returns float32 logits [B, N, 2]."""
    return class_logits(head, states.pooled(batch["cls_positions"]))


def pair_sums(logits_BxNx2: jax.Array, batch: Batch, corpus: Corpus) -> dict[str, jax.Array]:
    """Returns sums over examples: loss (nats), correct, count; correct [C] and labels [C, 2] by
    source."""
    loss_BxN, correct_BxN = log_loss(logits_BxNx2, batch["pair_labels"])
    weights_BxN = batch["pair_weights"]
    source_BxNxC = (
        jax.nn.one_hot(batch["pair_sources"], len(corpus.sources)) * weights_BxN[..., None]
    )
    predictions = tuple(range(weights_BxN.ndim))
    label_BxNx2 = jax.nn.one_hot(batch["pair_labels"], 2)
    return {
        "loss": jnp.sum(loss_BxN * weights_BxN),
        "correct": jnp.sum(correct_BxN * weights_BxN),
        "count": jnp.sum(weights_BxN),
        "source_correct": jnp.sum(source_BxNxC * correct_BxN[..., None], axis=predictions),
        "source_labels": jnp.einsum("...nc,...nl->cl", source_BxNxC, label_BxNx2),
    }


def _baselines(sums: Mapping[str, Any], sources: Sequence[str]) -> dict[str, float]:
    """Returns metrics of constant predictions, overall and per source, and accuracy per source.

    `baseline_accuracy` predicts the more frequent label, `source_accuracy` the more frequent label
    of the example's source, i.e. the accuracy possible from the source alone.
    """
    labels, correct = np.asarray(sums["source_labels"]), np.asarray(sums["source_correct"])
    total = max(labels.sum(), 1)
    metrics = {
        "baseline_accuracy": labels.sum(0).max() / total,
        "baseline_loss": entropy(labels.sum(0)) / total,
        "source_accuracy": labels.max(1).sum() / total,
        "source_loss": sum(map(entropy, labels)) / total,
    }
    for c, source in enumerate(sources):
        if labels[c].sum():
            metrics[f"{source}/accuracy"] = correct[c] / labels[c].sum()
            metrics[f"{source}/baseline_accuracy"] = labels[c].max() / labels[c].sum()
    return metrics


def _flops(model: ModelConfig, phase: PhaseConfig) -> float:
    H = model.hidden_size
    return 2 * phase.batch_size * phase.examples_per_row * (H * H + 2 * H)
