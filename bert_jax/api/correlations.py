"""Pearson's and Spearman's correlation with scores, in resamples of the pairs: their intervals, and
those of the difference of two models."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from bert_jax.ablation.intervals import draw_weights

RESAMPLES: Final = 2000
NAMES: Final = ("spearman", "pearson")


def resampled(
    scores: Sequence[float] | np.ndarray,
    predictions: Sequence[np.ndarray],
    resamples: int = RESAMPLES,
) -> Mapping[str, np.ndarray]:
    """Returns each correlation of `NAMES`, [M, R], in R resamples of the pairs with replacement,
    which are the same for all models and in every call; NaN where values do not differ.

    Args:
        scores: [N]. predictions: [N] of each of M models.
    """
    truth = np.asarray(scores, np.float64)
    found: dict[str, list[np.ndarray]] = {name: [] for name in NAMES}
    for _, weights in draw_weights(1, len(truth), resamples, np.random.default_rng(0)):
        ranks, plain = weighted_ranks(truth, weights), truth[None]
        ours = [np.asarray(one, np.float64) for one in predictions]
        spearman = [correlation(ranks, weighted_ranks(one, weights), weights) for one in ours]
        found["spearman"].append(np.stack(spearman))
        found["pearson"].append(np.stack([correlation(plain, one[None], weights) for one in ours]))
    return {name: np.concatenate(blocks, axis=1) for name, blocks in found.items()}


def weighted_ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the mean rank, from 1, of each value in each resample: [R, N].

    Args:
        values: [N]. weights: [R, N], how often each is drawn.
    """
    order = np.argsort(values, kind="stable")
    _, starts, group = np.unique(values[order], return_index=True, return_inverse=True)
    counts = np.add.reduceat(weights[:, order], starts, axis=1)  # of each value
    middle = np.cumsum(counts, axis=1) - (counts - 1) / 2
    ranks = np.empty_like(weights)
    ranks[:, order] = middle[:, group]
    return ranks


def correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns Pearson's correlation in each resample, NaN where values do not differ: [R].

    Args:
        x, y: [R, N] or [1, N]. weights: [R, N], how often each is drawn.
    """
    total = weights.sum(1, keepdims=True)
    x, y = (v - (weights * v).sum(1, keepdims=True) / total for v in (x, y))
    products = (weights * x * x).sum(1) * (weights * y * y).sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(products > 0, (weights * x * y).sum(1) / np.sqrt(products), np.nan)
