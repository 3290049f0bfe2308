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

from bert_jax.config.schema import Objective
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.ops.cross_entropy import log_loss
from bert_jax.parallel.global_batch import Batch

Sums = dict[str, dict[str, jax.Array]]  # objective -> name -> a sum over the global batch


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What the baselines know of the training text."""

    sources: tuple[str, ...]
    log_unigram: np.ndarray  # float32 [V] log-frequencies of the ids, counts plus one

    @classmethod
    def of(cls, store: TokenStore, specials: tuple[float, float] = (0.0, 0.0)) -> "Corpus":
        """specials: the [CLS] and [SEP] that may be predicted, for each token of text."""
        counts = store.train.token_counts.astype(np.float64)
        counts[[store.special.cls, store.special.sep]] += np.multiply(specials, counts.sum())
        counts += 1
        return cls(store.sources, np.log(counts / counts.sum()).astype(np.float32))


def token_sums(
    logits_BxPxV: jax.Array, labels_BxP: jax.Array, weights_BxP: jax.Array, corpus: Corpus
) -> dict[str, jax.Array]:
    """Sums over predicted tokens: loss (nats), correct, count; and what frequency alone predicts.

    The baseline's loss is the cross-entropy of the training frequencies on the labels seen; its
    accuracy is that of always saying the most frequent token.
    """
    loss_BxP, correct_BxP = log_loss(logits_BxPxV, labels_BxP)
    unigram_BxP = -jnp.asarray(corpus.log_unigram)[labels_BxP]
    return {
        "loss": jnp.sum(loss_BxP * weights_BxP),
        "correct": jnp.sum(correct_BxP * weights_BxP),
        "baseline_loss": jnp.sum(unigram_BxP * weights_BxP),
        "baseline_correct": jnp.sum((labels_BxP == corpus.log_unigram.argmax()) * weights_BxP),
        "count": jnp.sum(weights_BxP),
    }


def pair_sums(logits_BxNx2: jax.Array, batch: Batch, num_sources: int) -> dict[str, jax.Array]:
    """Sums over examples: loss (nats), correct, count; per source correct [C], labels [C, 2]."""
    loss_BxN, correct_BxN = log_loss(logits_BxNx2, batch["pair_labels"])
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


def denominators(batch: Batch) -> dict[str, jax.Array]:
    """What each objective's summed loss is divided by, from the weights of a global batch alone.

    Known before the first forward pass, so that parts of a batch, one after the other, add up to
    the same loss. Counts of predictions, 1 where there are none; of span boundaries one more than
    the count, as published (spanbert_loss.py:61-66 of SpanBERT).

    Args:
        batch: arrays with any leading dimensions; those of absent objectives need not be there.
    """
    found: dict[str, jax.Array] = {}
    for name, weights in _WEIGHTS.items():
        if weights in batch:
            count = jnp.sum(batch[weights])
            found[name] = count + 1 if name == "sbo" else jnp.maximum(count, 1)
    return found


_WEIGHTS: dict[Objective, str] = {
    "mlm": "masked_weights", "nsp": "pair_weights", "sop": "pair_weights", "sbo": "span_weights",
}  # fmt: skip


def all_sums(
    outputs: Mapping[Objective, jax.Array],
    batch: Batch,
    corpus: Corpus,
    counts: Mapping[str, jax.Array] | None = None,
) -> tuple[jax.Array, Sums]:
    """The loss that is minimized, all objectives with equal weights, and every sum behind it.

    Args:
        outputs: logits of each objective, as the model gives them.
        counts: `denominators` of the whole batch, where this is a part of it.
    """
    if counts is None:
        counts = denominators(batch)
    sums: Sums = {}
    loss = jnp.float32(0)
    for name, logits in outputs.items():
        if name in ("nsp", "sop"):
            sums[name] = pair_sums(logits, batch, len(corpus.sources))
        else:
            sums[name] = token_sums(logits, batch["masked_labels"], batch[_WEIGHTS[name]], corpus)
        loss += sums[name]["loss"] / counts[name]
    sums["tokens"] = {
        "real": jnp.sum(batch["example_ids"] > 0, dtype=jnp.float32),
        "all": jnp.float32(batch["example_ids"].size),
    }
    return loss, sums


def summarize(sums: Mapping[str, Mapping[str, Any]], sources: tuple[str, ...]) -> dict[str, float]:
    """Sums over any number of batches -> the scalars people read, trivial baselines among them.

    `loss` is the sum of the objectives' losses, each a mean over its predictions. For pairs (nsp or
    sop), `baseline_accuracy` always says the more frequent label; `source_accuracy` says the more
    frequent label of the example's source, so it is what seeing only the source is worth.
    """
    scalars = {"loss": 0.0}
    for name, of in sums.items():
        if name == "tokens":
            continue
        count = max(float(of["count"]), 1.0)
        own = {"loss": float(of["loss"]) / count, "accuracy": float(of["correct"]) / count}
        if name in ("nsp", "sop"):
            own |= _pair_baselines(of, sources)
        else:
            own["baseline_loss"] = float(of["baseline_loss"]) / count
            own["baseline_accuracy"] = float(of["baseline_correct"]) / count
        scalars["loss"] += own["loss"]
        scalars |= {f"{name}/{what}": value for what, value in own.items()}
    scalars["padding"] = 1 - float(sums["tokens"]["real"]) / float(sums["tokens"]["all"])
    return {name: float(value) for name, value in scalars.items()}


def _pair_baselines(of: Mapping[str, Any], sources: tuple[str, ...]) -> dict[str, float]:
    """Of a pair objective: constant predictions, over all and by source; accuracy by source."""
    labels, correct = np.asarray(of["source_labels"]), np.asarray(of["source_correct"])
    total = max(labels.sum(), 1)
    found = {
        "baseline_accuracy": labels.sum(0).max() / total,
        "baseline_loss": _entropy(labels.sum(0)) / total,
        "source_accuracy": labels.max(1).sum() / total,
        "source_loss": sum(map(_entropy, labels)) / total,
    }
    for c, source in enumerate(sources):
        if labels[c].sum():
            found[f"{source}/accuracy"] = correct[c] / labels[c].sum()
            found[f"{source}/baseline_accuracy"] = labels[c].max() / labels[c].sum()
    return found


def _entropy(counts: np.ndarray) -> float:
    """-sum n log(n / total), in nats: the summed loss of the best constant prediction."""
    seen = counts[counts > 0]
    return float(-(seen * np.log(seen / counts.sum())).sum())
