"""Linear maps from the vector of a word to what stands at a given offset from it.

For an offset o, P[a, b] is the positive pointwise mutual information of an a with a b that stands o
tokens after it, with the smoothing of `word_vectors`. The map is the solution of

    min over M  sum over a, b of  w[a] w[b] (e[a]^T M (e[b] + z) - P[a, b])^2

with e the vectors of words, w their counts to the power of the smoothing, and z what else the input
holds, of which the covariance is known. So M sends the vector of a neighbour to a vector whose
products with those of words are what the neighbour says of them: a bilinear form of bigrams
(compare Mnih and Hinton 2007, "Three New Graphical Models for Statistical Language Modelling",
section 4, whose maps are learned). Truncated to the rank of an attention head, it is the product of
a value and an output.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import threadpoolctl

from bert_jax.data_pipeline.analysis.cooccurrence import Cooccurrences, Text, count_cooccurrences
from bert_jax.data_pipeline.analysis.word_vectors import (
    SparseMatrix,
    information_of_columns,
    information_of_rows,
)

_RIDGE: Final = 1e-3  # of the mean variance, so that directions without words are not blown up


def neighbor_maps(
    text: Text,
    words: np.ndarray,
    spread: np.ndarray,
    offsets: Sequence[int],
    rank: int,
    smoothing: float,
    pool: ThreadPoolExecutor,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the factors of the map of each offset: values [A, H, rank] and outputs [A, rank, H],
    float32; a row vector e of a neighbour is sent to e @ values @ outputs.

    The same bits for any number of threads.

    Args:
        words: vectors of the entries, [V, H]; zeros for those that have none.
        spread: covariance of what is added to them, [H, H].
    """
    weights = np.where(words.any(axis=1), text.counts, 0.0) ** smoothing
    weighted = words * (weights / max(weights.sum(), 1.0))[:, None]
    forms = dict[int, np.ndarray]()
    for distance in {abs(offset) for offset in offsets}:
        found = count_cooccurrences(text, {distance: 1.0}, pool)
        for offset in {distance, -distance}.intersection(offsets):
            forms[offset] = _form(found, weighted, offset, smoothing, pool)
    values, outputs = [], []
    with threadpoolctl.threadpool_limits(1):
        own = weighted.T @ words
        ridge = _RIDGE * (np.trace(own) or 1.0) / len(own) * np.eye(len(own))
        for offset in offsets:
            form = np.linalg.solve(own + ridge, forms[offset])  # words x neighbours
            form = np.linalg.solve(own + spread + ridge, form.T)  # neighbours x words
            left, sizes, right = np.linalg.svd(form)
            roots = np.sqrt(sizes[:rank])
            values.append(left[:, :rank] * roots)
            outputs.append(roots[:, None] * right[:rank])
    return np.stack(values).astype(np.float32), np.stack(outputs).astype(np.float32)


def _form(
    found: Cooccurrences,
    weighted: np.ndarray,
    offset: int,
    smoothing: float,
    pool: ThreadPoolExecutor,
) -> np.ndarray:
    """Returns the products of weighted words with P of an offset between them, [H, H].

    found: with what stands that far after each entry; what stands before is its transpose.
    """
    contexts = np.bincount(found.others, found.weights, len(weighted))
    information = information_of_rows if offset > 0 else information_of_columns
    near = SparseMatrix(information(found, contexts, smoothing, pool), pool)
    with threadpoolctl.threadpool_limits(1):
        form = weighted.T @ (near @ weighted.astype(np.float32))
    return form if offset > 0 else form.T
