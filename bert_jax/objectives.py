"""Losses as sums over the global batch with their counts, and the trivial baselines beside them.

A loss is sum / count over the whole global batch, never a mean of means, so it does not depend on
how rows are spread over devices. (The original normalizes per core and adds 1e-5 to the count.)
Sizes: B rows, P prediction slots, N examples in a row, V vocabulary, C sources.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.heads import Batch
from data_pipeline.store import TokenStore

Sums = dict[str, dict[str, jax.Array]]  # objective -> name -> a sum over the global batch


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What the baselines know of the training text."""

    sources: tuple[str, ...]
    log_unigram: np.ndarray  # float32 [V] log-frequencies of the ids, counts plus one

    @classmethod
    def of(cls, store: TokenStore) -> "Corpus":
        counts = store.train.token_counts.astype(np.float64) + 1
        return cls(store.sources, np.log(counts / counts.sum()).astype(np.float32))


def _log_loss(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-log p(label) and whether the label has the highest logit, over the last dimension."""
    top = jax.lax.stop_gradient(logits.max(-1))
    of_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    total = jnp.log(jnp.sum(jnp.exp(logits - top[..., None]), axis=-1)) + top
    return total - of_label, of_label >= top


def masked_lm(logits_BxPxV: jax.Array, batch: Batch, corpus: Corpus) -> dict[str, jax.Array]:
    """Sums over masked positions: loss (nats), correct, count; and what frequency alone predicts.

    The baseline's loss is the cross-entropy of the training frequencies on the labels seen; its
    accuracy is that of always saying the most frequent token.
    """
    labels_BxP, weights_BxP = batch["masked_labels"], batch["masked_weights"]
    loss_BxP, correct_BxP = _log_loss(logits_BxPxV, labels_BxP)
    unigram_BxP = -jnp.asarray(corpus.log_unigram)[labels_BxP]
    return {
        "loss": jnp.sum(loss_BxP * weights_BxP),
        "correct": jnp.sum(correct_BxP * weights_BxP),
        "baseline_loss": jnp.sum(unigram_BxP * weights_BxP),
        "baseline_correct": jnp.sum((labels_BxP == corpus.log_unigram.argmax()) * weights_BxP),
        "count": jnp.sum(weights_BxP),
    }


def next_sentence(logits_BxNx2: jax.Array, batch: Batch, num_sources: int) -> dict[str, jax.Array]:
    """Sums over examples: loss (nats), correct, count; per source correct [C], labels [C, 2]."""
    loss_BxN, correct_BxN = _log_loss(logits_BxNx2, batch["pair_labels"])
    weights_BxN = batch["pair_weights"]
    source_BxNxC = jax.nn.one_hot(batch["pair_sources"], num_sources) * weights_BxN[..., None]
    label_BxNx2 = jax.nn.one_hot(batch["pair_labels"], 2)
    return {
        "loss": jnp.sum(loss_BxN * weights_BxN),
        "correct": jnp.sum(correct_BxN * weights_BxN),
        "count": jnp.sum(weights_BxN),
        "source_correct": jnp.sum(source_BxNxC * correct_BxN[..., None], axis=(0, 1)),
        "source_labels": jnp.einsum("bnc,bnl->cl", source_BxNxC, label_BxNx2),
    }


def all_sums(
    outputs: tuple[jax.Array, jax.Array], batch: Batch, corpus: Corpus
) -> tuple[jax.Array, Sums]:
    """The loss that is minimized, MLM + NSP with equal weights, and every sum behind it."""
    mlm_logits, nsp_logits = outputs
    sums = {
        "mlm": masked_lm(mlm_logits, batch, corpus),
        "nsp": next_sentence(nsp_logits, batch, len(corpus.sources)),
        "tokens": {
            "real": jnp.sum(batch["example_ids"] > 0, dtype=jnp.float32),
            "all": jnp.float32(batch["example_ids"].size),
        },
    }
    loss = sum(sums[name]["loss"] / jnp.maximum(sums[name]["count"], 1) for name in ("mlm", "nsp"))
    return jnp.asarray(loss), sums


def summarize(sums: Mapping[str, Mapping[str, Any]], sources: tuple[str, ...]) -> dict[str, float]:
    """Sums over any number of batches -> the scalars people read, NSP's baselines among them.

    `nsp/baseline_accuracy` always says the more frequent label; `nsp/source_accuracy` says the more
    frequent label of the example's source, so it is what seeing only the source is worth.
    """
    scalars = {"loss": 0.0}
    for name in ("mlm", "nsp"):
        count = max(float(sums[name]["count"]), 1.0)
        scalars[f"{name}/loss"] = float(sums[name]["loss"]) / count
        scalars[f"{name}/accuracy"] = float(sums[name]["correct"]) / count
        scalars["loss"] += scalars[f"{name}/loss"]
    masked = max(float(sums["mlm"]["count"]), 1.0)
    scalars["mlm/baseline_loss"] = float(sums["mlm"]["baseline_loss"]) / masked
    scalars["mlm/baseline_accuracy"] = float(sums["mlm"]["baseline_correct"]) / masked
    labels = np.asarray(sums["nsp"]["source_labels"])
    correct = np.asarray(sums["nsp"]["source_correct"])
    total = max(labels.sum(), 1)
    scalars["nsp/baseline_accuracy"] = labels.sum(0).max() / total
    scalars["nsp/baseline_loss"] = _entropy(labels.sum(0)) / total
    scalars["nsp/source_accuracy"] = labels.max(1).sum() / total
    scalars["nsp/source_loss"] = sum(map(_entropy, labels)) / total
    for c, source in enumerate(sources):
        if labels[c].sum():
            scalars[f"nsp/{source}/accuracy"] = correct[c] / labels[c].sum()
            scalars[f"nsp/{source}/baseline_accuracy"] = labels[c].max() / labels[c].sum()
    scalars["padding"] = 1 - float(sums["tokens"]["real"]) / float(sums["tokens"]["all"])
    return {name: float(value) for name, value in scalars.items()}


def _entropy(counts: np.ndarray) -> float:
    """-sum n log(n / total), in nats: the summed loss of the best constant prediction."""
    seen = counts[counts > 0]
    return float(-(seen * np.log(seen / counts.sum())).sum())
