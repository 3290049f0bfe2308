"""Attention within a window, in plain JAX, for every device: each token costs what it sees.

Queries are cut into blocks, and each block attends to the keys from half a window before it to half
a window after it, which are in two neighbouring blocks of keys. So time and memory grow with the
length, not with its square.

Sizes: B rows, S positions, A heads, D head dimension, N blocks of Q queries and K keys.
"""

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.ops.attention import xla
from bert_jax.ops.hashing import fold_key

_SHORTEST_BLOCK = 128  # lanes of a TPU's registers


def attend(
    q_BxSxAxD: jax.Array,
    k_BxSxAxD: jax.Array,
    v_BxSxAxD: jax.Array,
    examples_BxS: jax.Array,
    *,
    window: int,
    rate: float = 0.0,
    key: jax.Array | None = None,
) -> jax.Array:
    """Returns attention [B, S, A, D] to at most window // 2 tokens on each side.

    The other arguments and the result are as in `xla.attend`, whose dropout masks differ.
    """
    B, S, A, D = q_BxSxAxD.shape
    half, size = window // 2, _block_size(window)
    if pairs(S, window) == S * S:
        band = xla.Band(half) if half < S - 1 else None
        return xla.attend(
            q_BxSxAxD, k_BxSxAxD, v_BxSxAxD, examples_BxS, rate=rate, key=key, band=band
        )
    arrays = xla.heads_first(q_BxSxAxD, k_BxSxAxD, v_BxSxAxD)
    q_BxAxNxQxD = _blocks(arrays[0], size)
    k_BxAxNxKxD, v_BxAxNxKxD = (_pairs(x, size, half) for x in arrays[1:])
    reads_BxSx1, own_BxSx1 = (ids[..., None] for ids in xla.reads_and_own(examples_BxS))
    reads_BxNxQ = _blocks(reads_BxSx1, size)[..., 0]
    own_BxNxK = _pairs(own_BxSx1, size, half, fill=-1)[..., 0]
    keys_N = None if key is None else fold_key(key, jnp.arange(reads_BxNxQ.shape[1]))

    def block(q: jax.Array, k: jax.Array, v: jax.Array, examples: tuple, key: Any) -> jax.Array:
        return xla.attend_heads(q, k, v, examples, key, rate, xla.Band(half, offset=half))

    of_block = (2, 2, 2, 1, None if key is None else 0)
    y_BxAxNxQxD = jax.vmap(block, of_block, out_axes=2)(
        q_BxAxNxQxD, k_BxAxNxKxD, v_BxAxNxKxD, (reads_BxNxQ, own_BxNxK), keys_N
    )
    return y_BxAxNxQxD.reshape(B, A, -1, D)[:, :, :S].swapaxes(1, 2)


def pairs(length: int, window: int) -> int:
    """Returns how many pairs of a query and a key of a row are multiplied: all, or fewer by blocks
    of queries, the last of them full, too."""
    size = _block_size(window)
    return min(length * length, -(-length // size) * size * 2 * size)


def _block_size(window: int) -> int:
    return max(2 * (window // 2), _SHORTEST_BLOCK)


def _blocks(x: jax.Array, size: int) -> jax.Array:
    """[…, S, D] -> […, N, size, D]; the last block ends in zeros."""
    x = _padded(x, 0, -x.shape[-2] % size, 0)
    return x.reshape(*x.shape[:-2], -1, size, x.shape[-1])


def _pairs(x: jax.Array, size: int, before: int, fill: int = 0) -> jax.Array:
    """[…, S, D] -> […, N, 2 · size, D]: for each block of `_blocks`, the elements from `before`
    positions before it."""
    blocks = _blocks(_padded(x, before, -x.shape[-2] % size + size - before, fill), size)
    return jnp.concatenate([blocks[..., :-1, :, :], blocks[..., 1:, :, :]], axis=-2)


def _padded(x: jax.Array, before: int, after: int, fill: int) -> jax.Array:
    ends = [*[(0, 0)] * (x.ndim - 2), (before, after), (0, 0)]
    return jnp.pad(x, ends, constant_values=fill)
