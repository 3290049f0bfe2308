"""Ranks of the right text of an anchor among the texts of other examples, by cosine.

Examples are compared in groups of at most 64, so that the metrics do not depend on the batch of a
run: every n-th example of the file is in one group. Sizes: E examples, C texts of each, D numbers
of a vector.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from bert_jax.finetune.tasks.kind import Measured
from bert_jax.objectives.in_batch_negatives import is_candidate

GROUP: Final = 64


class Ranked(float):
    """The cosine of an anchor and its positive, and the rank of the positive among the candidates,
    from 1; 0 where there is no other candidate."""

    rank: int

    @classmethod
    def of(cls, cosine: float, rank: int) -> "Ranked":
        found = cls(cosine)
        found.rank = int(rank)
        return found


def ranked(texts_ExC: np.ndarray, vectors: Any) -> list[Ranked]:
    """Returns the rank of each positive; a candidate that is as near is before it.

    Args:
        texts_ExC: numbers of the texts, see `in_batch_negatives.is_candidate`.
        vectors: of the texts, float [E, C, D], or a sparse matrix of unit vectors [E·C, D].
    """
    number, several = texts_ExC.shape
    rows = _unit(vectors).reshape(number * several, -1) if _is_dense(vectors) else vectors
    found: list[Ranked] = [Ranked()] * number
    step = -(-number // GROUP)
    for own in (np.arange(first, number, step) for first in range(step)):
        index, texts = np.arange(len(own)), texts_ExC[own]
        others = is_candidate(texts[:, 0], texts, index, np)
        others[index, index] = False
        candidates = np.concatenate([own * several + place for place in range(1, several)])
        scores = _product(rows[own * several], rows[candidates])
        right = scores[index, index]
        with np.errstate(invalid="ignore"):  # vectors that are not finite have the last rank
            ranks = 1 + (others & ~(scores < right[:, None])).sum(1)
        for example, cosine, rank, some in zip(own, right, ranks, others.any(1), strict=True):
            found[example] = Ranked.of(cosine, rank if some else 0)
    return found


def measure_ranks(predictions: Sequence[Ranked]) -> Measured:
    """Returns how often the rank is 1, "accuracy", and the mean of 1 / rank, "mrr"; None if no
    example has another candidate."""
    ranks = np.array([one.rank for one in predictions if one.rank], np.float64)
    if not len(ranks):
        return {"accuracy": None, "mrr": None}
    return {"accuracy": float((ranks == 1).mean()), "mrr": float((1 / ranks).mean())}


def cosines(vectors: Any) -> np.ndarray:
    """Returns the cosine of the two texts of each example, [E]; vectors: as of `ranked`."""
    if not _is_dense(vectors):
        return np.asarray(vectors[::2].multiply(vectors[1::2]).sum(1)).reshape(-1)
    unit = _unit(vectors)
    return np.einsum("ed,ed->e", unit[:, 0], unit[:, 1])


def _is_dense(vectors: Any) -> bool:
    return isinstance(vectors, np.ndarray)


def _unit(vectors: np.ndarray) -> np.ndarray:
    exact = vectors.astype(np.float64)
    return exact / np.maximum(np.linalg.norm(exact, axis=-1, keepdims=True), 1e-12)


def _product(x: Any, y: Any) -> np.ndarray:
    product = x @ y.T
    return product if _is_dense(product) else product.toarray()
