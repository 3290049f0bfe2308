"""Exact search: the vectors with the highest scores, all of them compared on all local devices.

Q queries, N stored vectors of D dimensions, k results. Vectors are read in blocks; each device has
an equal share of the rows of a block, and keeps the best rows that it has seen.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.api.small_vectors import decoded
from bert_jax.errors import UserError
from bert_jax.parallel.global_batch import batch_sharding
from bert_jax.parallel.local_devices import local_mesh, power_of_two, replicate, shard_rows

_ROWS: Final = 1 << 14  # of a block on a device
_QUERIES: Final = 256  # that are compared with a block together
_SHORTEST: Final = 1e-12  # length by which a vector is divided, as in torch.nn.functional.normalize
_NONE: Final = -1  # a row that is not compared
_NO_ROW: Final = np.iinfo(np.int32).max


class _Best(NamedTuple):
    """The best rows that each of n devices has seen."""

    scores: Any  # float32 [n, Q, k], descending; -inf where there is none
    rows: Any  # int32 [n, Q, k]
    bad: Any  # int32 [n]: the first row whose scores are not finite, or _NO_ROW


def top_rows(
    queries: np.ndarray,
    vectors: np.ndarray,
    k: int,
    *,
    cosine: bool = False,
    ranges: np.ndarray | None = None,
    allowed: np.ndarray | None = None,
    done: Callable[[int], object] = lambda rows: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the scores, float32 [Q, k], and the rows, int64 [Q, k], of the vectors with the
    highest scores for each query, in descending order; of equal scores, the lower row first.

    With fewer than k rows, as many as there are. A score is the dot product in float32.

    Args:
        queries: [Q, D].
        vectors: [N, D] in any floats, int8 or uint8 [N, D / 8], see `small_vectors.decoded`; may be
            memory-mapped: it is read in blocks.
        cosine: divide scores by the lengths of both vectors.
        ranges: float32 [2, D], of int8 vectors.
        allowed: bool [N]: the rows that are compared; None for all.
        done: called with the number of rows that were compared.

    Raises:
        UserError: k is below 1, the vectors have another number of dimensions than the queries, or
            a number is NaN, infinite or too large to be multiplied.
    """
    queries = np.asarray(queries, np.float32)
    total = len(vectors)
    width = vectors.shape[1] * (8 if vectors.dtype == np.uint8 else 1)
    if k < 1:
        raise UserError(f"k={k}; give 1 or more")
    if queries.shape[1] != width:
        raise UserError(f"queries of {queries.shape[1]:,} numbers, vectors of {width:,}")
    if total > _NO_ROW:
        raise UserError(f"{total:,} vectors; at most {_NO_ROW:,} can be searched")
    if not np.isfinite(queries).all():
        raise UserError("a query has a number that is NaN or infinite")
    if cosine:
        lengths = np.linalg.norm(queries, axis=1, keepdims=True)
        queries = queries / np.maximum(lengths, _SHORTEST)
    k = min(k, total if allowed is None else int(np.count_nonzero(allowed)))
    if not k or not len(queries):
        return np.zeros((len(queries), k), np.float32), np.zeros((len(queries), k), np.int64)
    batches = [replicate(batch) for batch in _batches(queries)]
    best = [_nothing(len(batch), k) for batch in batches]
    given = replicate(np.zeros((2, 0)) if ranges is None else ranges).astype(jnp.float32)
    step = _compiled(cosine)
    for last, block in _blocks(vectors, allowed):
        # The devices compare the block before while this one is read.
        _check([found.bad for found in best])
        placed = shard_rows(block)
        best = [step(*pair, *placed, given) for pair in zip(best, batches, strict=True)]
        done(last)
    _check([found.bad for found in best])
    merged = [_merged(found, k) for found in best]
    scores, rows = (np.concatenate(parts)[: len(queries)] for parts in zip(*merged, strict=True))
    return scores, rows


def _batches(queries: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the queries in batches of one shape; the last is filled up with zeros."""
    size = min(power_of_two(len(queries)), _QUERIES)
    for first in range(0, len(queries), size):
        batch = np.zeros((size, queries.shape[1]), np.float32)
        part = queries[first : first + size]
        batch[: len(part)] = part
        yield batch


def _blocks(
    vectors: np.ndarray, allowed: np.ndarray | None
) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray]]]:
    """Yields the row after each block, and its vectors with their rows, _NONE where there is none;
    all have one shape."""
    devices = jax.local_device_count()
    size = devices * min(power_of_two(-(-len(vectors) // devices)), _ROWS)
    native = vectors.dtype.newbyteorder("=")
    for first in range(0, len(vectors), size):
        last = min(first + size, len(vectors))
        block = np.zeros((size, vectors.shape[1]), native)
        block[: last - first] = vectors[first:last]
        rows = np.full(size, _NONE, np.int32)
        rows[: last - first] = np.arange(first, last)
        if allowed is not None:
            rows[: last - first][~allowed[first:last]] = _NONE
        yield last, (block, rows)


def _nothing(queries: int, k: int) -> _Best:
    devices = jax.local_device_count()
    found: _Best = shard_rows(
        _Best(
            np.full((devices, queries, k), -np.inf, np.float32),
            np.full((devices, queries, k), _NONE, np.int32),
            np.full(devices, _NO_ROW, np.int32),
        )
    )
    return found


@cache
def _compiled(cosine: bool) -> Callable[..., _Best]:
    """Returns the function that compares queries with a block, for all devices."""
    mesh = local_mesh()
    rows, whole = batch_sharding(mesh).spec, jax.sharding.PartitionSpec()
    on_each = jax.shard_map(
        partial(_compare, cosine=cosine),
        mesh=mesh,
        in_specs=(rows, whole, rows, rows, whole),
        out_specs=rows,
    )
    return jax.jit(on_each, donate_argnums=0)


@jax.default_matmul_precision("highest")
def _compare(
    best: _Best,
    queries_QxD: jax.Array,
    block_BxW: jax.Array,
    rows_B: jax.Array,
    ranges_2xD: jax.Array,
    *,
    cosine: bool,
) -> _Best:
    """Returns the best rows of a device after its share of a block."""
    vectors_BxD = decoded(block_BxW, ranges_2xD)
    scores_QxB = queries_QxD @ vectors_BxD.T
    if cosine:
        lengths_B = jnp.linalg.norm(vectors_BxD, axis=1)
        scores_QxB /= jnp.maximum(lengths_B, _SHORTEST)[None]
    is_there_B = rows_B >= 0
    is_bad_B = is_there_B & ~jnp.isfinite(scores_QxB).all(axis=0)
    bad = jnp.minimum(best.bad, jnp.where(is_bad_B, rows_B, _NO_ROW).min())
    scores_QxB = jnp.where(is_there_B[None], scores_QxB, -jnp.inf)
    # Of equal scores top_k takes the first, so the rows that were seen before stand before.
    before_Qxk, rows_Qxk = best.scores[0], best.rows[0]
    k = rows_Qxk.shape[1]
    scores_Qxk, at_Qxk = jax.lax.top_k(jnp.concatenate([before_Qxk, scores_QxB], 1), k)
    own_Qxk = jnp.take_along_axis(rows_Qxk, jnp.minimum(at_Qxk, k - 1), axis=1)
    new_Qxk = rows_B[jnp.maximum(at_Qxk - k, 0)]
    return _Best(scores_Qxk[None], jnp.where(at_Qxk < k, own_Qxk, new_Qxk)[None], bad)


def _check(bad: list[jax.Array]) -> None:
    """Waits for the blocks before; UserError if a row had scores that are not finite."""
    row = min(int(np.asarray(one).min()) for one in bad)
    if row != _NO_ROW:
        raise UserError(f"row {row:,} has a number that is NaN, infinite or too large")


def _merged(best: _Best, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the scores and the rows of all devices together, [Q, k] each."""
    scores, rows = (
        np.asarray(x).swapaxes(0, 1).reshape(x.shape[1], -1) for x in (best.scores, best.rows)
    )
    order = np.lexsort((rows, -scores), axis=1)[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1).astype(np.int64)
