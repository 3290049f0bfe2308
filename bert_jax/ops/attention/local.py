"""Attention within a window, in plain JAX, for every device: each token costs what it sees.

Queries are cut into blocks, and each block attends to the keys from half a window before it to half
a window after it, which are in two neighbouring blocks of keys. So time and memory grow with the
length, not with its square, and `xla.attend` computes all blocks as rows of a batch.
"""

import jax
import jax.numpy as jnp

from bert_jax.ops.attention import xla

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
    if keys_per_query(S, window) == S:
        band = xla.Band(half) if half < S - 1 else None
        return xla.attend(
            q_BxSxAxD, k_BxSxAxD, v_BxSxAxD, examples_BxS, rate=rate, key=key, band=band
        )
    reads_BxS, own_BxS = xla.reads_and_own(examples_BxS)
    keys, values = (_pairs(x, size, half) for x in (k_BxSxAxD, v_BxSxAxD))
    y_NxQxAxD = xla.attend(
        _blocks(q_BxSxAxD, size), keys, values,
        (_blocks(reads_BxS, size), _pairs(own_BxS, size, half, fill=-1)),
        rate=rate, key=key, band=xla.Band(half, offset=half),
    )  # fmt: skip
    return y_NxQxAxD.reshape(B, -1, A, D)[:, :S]


def keys_per_query(length: int, window: int) -> int:
    """Returns how many keys each query of a row is multiplied by."""
    size = _block_size(window)
    return length if 2 * size >= length else 2 * size


def _block_size(window: int) -> int:
    return max(2 * (window // 2), _SHORTEST_BLOCK)


def _blocks(x_BxS: jax.Array, size: int) -> jax.Array:
    """[B, S, …] -> [B · blocks, size, …]; the last block ends in zeros."""
    x_BxS = _padded(x_BxS, 0, -x_BxS.shape[1] % size, 0)
    return x_BxS.reshape(-1, size, *x_BxS.shape[2:])


def _pairs(x_BxS: jax.Array, size: int, before: int, fill: int = 0) -> jax.Array:
    """[B, S, …] -> [B · blocks, 2 · size, …]: for each block of `_blocks`, the elements from
    `before` positions before it."""
    B, S, *rest = x_BxS.shape
    x_BxS = _padded(x_BxS, before, -S % size + size - before, fill)
    blocks = x_BxS.reshape(B, -1, size, *rest)
    pairs = jnp.concatenate([blocks[:, :-1], blocks[:, 1:]], axis=2)
    return pairs.reshape(-1, 2 * size, *rest)


def _padded(x_BxS: jax.Array, before: int, after: int, fill: int) -> jax.Array:
    ends = [(0, 0), (before, after), *[(0, 0)] * (x_BxS.ndim - 2)]
    return jnp.pad(x_BxS, ends, constant_values=fill)
