"""Vectors of the entries of a vocabulary from what stands near them in a store's training text.

Spectral vectors, which are what word2vec factorizes implicitly (Levy and Goldberg 2014, "Neural
Word Embedding as Implicit Matrix Factorization"; context smoothing and the exponent are of Levy,
Goldberg and Dagan 2015, "Improving Distributional Similarity", section 3):

    M[a, b] = max(0, log(C[a, b] / (r[a] c[b])))    C of `cooccurrence`, r its row sums, and
    c[b] = r[b]^smoothing / sum of these            of a context
    M = U S V^T                                     truncated at the width
    X = U S^exponent                                then every row to length 1

The decomposition is that of Halko, Martinsson and Tropp 2011 ("Finding Structure with Randomness",
algorithms 4.4 and 5.1), with the shifts of Feng, Yu, Xie and Tang 2024 ("Faster Randomized SVD with
Dynamic Shifts", arXiv 2404.09276), which separate singular values that are close to each other.
Everything is computed in a fixed order, the dense part by one thread, so the vectors are the same
bits for any number of threads.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import scipy.sparse
import threadpoolctl

from bert_jax.data_pipeline.analysis.cooccurrence import Cooccurrences, even_blocks
from bert_jax.data_pipeline.random.numba_jit import compiled

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # offsets, columns and values of a sparse matrix

RAREST: Final = 3  # occurrences of an entry that gets a vector
_MORE: Final = 32  # columns that are computed beyond the width
_ITERATIONS: Final = 4
_BLOCKS: Final = 16  # of rows of a dense matrix: what one thread does at a time
_DEPENDENT: Final = 1e-6  # of the largest: a column this small is rounding of the others


def spectral_vectors(
    found: Cooccurrences, width: int, smoothing: float, exponent: float, pool: ThreadPoolExecutor
) -> np.ndarray:
    """Returns float32 [V, width]: rows of length 1; zeros for entries seen fewer than `RAREST`
    times, or near nothing.

    Memory: up to 24 bytes per non-zero element, and 16 per element of the result.

    Args:
        width: at most V.
    """
    with threadpoolctl.threadpool_limits(1):
        left, values = decompose(*information(found, smoothing, pool), width, pool)
        x = left * values**exponent
        lengths = np.linalg.norm(x, axis=1, keepdims=True)
    known = (found.counts >= RAREST)[:, None] & (lengths > 0)
    return np.where(known, x / np.where(known, lengths, 1), 0).astype(np.float32)


class SparseMatrix:
    """A sparse matrix, whose product with a dense one all threads of a pool compute, by rows."""

    def __init__(self, rows: Rows, pool: ThreadPoolExecutor):
        offsets, others, values = rows
        self.size = size = len(offsets) - 1
        whole = scipy.sparse.csr_array((values, others, offsets), shape=(size, size))
        self._blocks = [whole[a:b] for a, b in even_blocks(offsets)]
        self._pool = pool

    def __matmul__(self, x: np.ndarray) -> np.ndarray:
        return np.concatenate([*self._pool.map(lambda block: block @ x, self._blocks)])


def information(
    found: Cooccurrences, smoothing: float, pool: ThreadPoolExecutor
) -> tuple[Rows, Rows]:
    """Returns M and its transpose, by rows. C is symmetric, so its rows suffice for both."""
    own, other = _logs(found.sums), _smoothed(found.sums, smoothing)
    return positive_logs(found, own, other, pool), positive_logs(found, other, own, pool)


def information_of_rows(
    found: Cooccurrences, contexts: np.ndarray, smoothing: float, pool: ThreadPoolExecutor
) -> Rows:
    """Returns the positive pointwise mutual information of the rows with the columns, whose sums
    are `contexts`, [V]."""
    return positive_logs(found, _logs(found.sums), _smoothed(contexts, smoothing), pool)


def information_of_columns(
    found: Cooccurrences, contexts: np.ndarray, smoothing: float, pool: ThreadPoolExecutor
) -> Rows:
    """Returns the same of the columns with the rows, transposed: M of the transpose of C, whose
    element [a, b] stands in row b."""
    return positive_logs(found, _smoothed(found.sums, smoothing), _logs(contexts), pool)


def positive_logs(
    found: Cooccurrences, own: np.ndarray, other: np.ndarray, pool: ThreadPoolExecutor
) -> Rows:
    """Returns the positive elements of log C[a, b] - own[a] - other[b]."""

    def rows(block: tuple[int, int]) -> tuple[np.ndarray, ...]:
        return _positive(found.offsets, found.others, found.weights, own, other, *block)

    blocks = [*pool.map(rows, even_blocks(found.offsets))]
    sizes, columns, values = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return np.concatenate([[0], np.cumsum(sizes)]), columns, values


def _logs(sums: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(sums, np.finfo(np.float64).tiny))  # of entries near nothing


def _smoothed(sums: np.ndarray, smoothing: float) -> np.ndarray:
    """Returns the logarithms of c."""
    total = np.where(sums > 0, sums**smoothing, 0).sum()
    return smoothing * _logs(sums) - np.log(total or 1)


def decompose(
    rows: Rows, rows_of_transposed: Rows, width: int, pool: ThreadPoolExecutor
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first left singular vectors, float32 [V, width], and values, float32 [width]."""
    matrix, transposed = SparseMatrix(rows, pool), SparseMatrix(rows_of_transposed, pool)
    random, shift = np.random.Generator(np.random.PCG64(0)), np.float32(0)
    columns = min(width + _MORE, matrix.size)
    q, _ = _orthogonal(pool, matrix @ random.standard_normal((matrix.size, columns), np.float32))
    for _ in range(_ITERATIONS):
        q, triangle = _orthogonal(pool, matrix @ (transposed @ q) - shift * q)
        shift = max(shift, (shift + np.linalg.svd(triangle, compute_uv=False)[-1]) / 2)
    # Q^T M has the left singular vectors that the triangle of its transpose has on the right.
    _, triangle = _orthogonal(pool, transposed @ q)
    _, values, right = np.linalg.svd(triangle)
    return q @ right[:width].T, values[:width]


def _orthogonal(pool: ThreadPoolExecutor, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the QR decomposition of a tall matrix, float32.

    From the Cholesky factor of its products where its columns allow that, which takes a quarter of
    the time of reflections.
    """
    blocks = np.array_split(x, _BLOCKS)
    products = sum(pool.map(_own_products, blocks))
    try:
        triangle = np.linalg.cholesky(products).T
    except np.linalg.LinAlgError:  # columns that depend on one another
        return np.linalg.qr(x)
    sizes = np.diag(triangle)
    if sizes.min() < _DEPENDENT * sizes.max():
        return np.linalg.qr(x)
    inverse = np.linalg.inv(triangle)
    scaled = pool.map(lambda block: (block @ inverse).astype(x.dtype), blocks)
    return np.concatenate([*scaled]), triangle.astype(x.dtype)


def _own_products(rows: np.ndarray) -> np.ndarray:
    """Returns the products of the columns with one another, in float64."""
    wide = rows.astype(np.float64)
    return wide.T @ wide


@compiled
def _positive(offsets, others, weights, own, other, first, last):
    """Returns the positive elements of log weights[a, b] - own[a] - other[b] in the rows first ...
    last - 1: how many each row has, their columns and values."""
    kept, room = np.zeros(last - first, np.int64), offsets[last] - offsets[first]
    columns, values = np.empty(room, np.int32), np.empty(room, np.float32)
    used = np.int64(0)
    for a in range(first, last):
        begin = used
        for k in range(offsets[a], offsets[a + 1]):
            value = np.log(np.float64(weights[k])) - own[a] - other[others[k]]
            if value > 0:
                columns[used], values[used] = others[k], value
                used += 1
        kept[a - first] = used - begin
    return kept, columns[:used].copy(), values[:used].copy()
