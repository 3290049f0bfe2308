"""Shared by the objectives that predict one of several classes, or numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.ops.cross_entropy import log_loss


def class_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> dict[str, jax.Array]:
    """Returns sums over predictions: loss (nats), correct, count, and how often each label occurs.

    Args:
        logits: float32 [..., C].
        labels: int32 [...].
        weights: float32 [...], 0 or 1.
    """
    loss, correct = log_loss(logits, labels)
    label = jax.nn.one_hot(labels, logits.shape[-1]) * weights[..., None]
    return {
        "loss": jnp.sum(loss * weights),
        "correct": jnp.sum(correct * weights),
        "count": jnp.sum(weights),
        "labels": label.reshape(-1, logits.shape[-1]).sum(0),
    }


def binary_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns -log p(label) of labels 0 or 1, p(1) the sigmoid of the logit; all [...]."""
    return jnp.maximum(logits, 0) - logits * labels + jnp.log1p(jnp.exp(-jnp.abs(logits)))


def class_baselines(sums: Mapping[str, Any], sources: Sequence[str]) -> dict[str, float]:
    """Returns accuracy and loss of the best constant prediction."""
    labels = np.asarray(sums["labels"])
    total = max(labels.sum(), 1)
    return {
        "baseline_accuracy": float(labels.max() / total),
        "baseline_loss": entropy(labels) / float(total),
    }


def constant_rows(labels: np.ndarray) -> dict[str, np.ndarray]:
    """Returns loss and right answers, [N] each, of the best constant prediction for all rows.

    Args:
        labels: how often each label occurs in each row [N, C].
    """
    labels = np.asarray(labels, np.float64)
    total = labels.sum(0)
    logs = np.log(np.maximum(total, 1) / max(total.sum(), 1))  # a label that is nowhere counts not
    return {"loss": -labels @ logs, "correct": labels[:, total.argmax()]}


def entropy(counts: np.ndarray) -> float:
    """Returns -sum n log(n / total) in nats: the summed loss of the best constant prediction."""
    seen = counts[counts > 0]
    return float(-(seen * np.log(seen / counts.sum())).sum()) + 0.0  # of one label: 0, not -0
