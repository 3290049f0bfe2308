"""Dropout whose mask is a pure function of (key, position), the same on every mesh.

Each element's bits are a hash of a key and the element's index, so there is no generator state to
checkpoint and nothing is drawn for the global batch: under `jit` the index is an iota that the
partitioner splits with the array, and the hash is fused into the multiplication. The backward pass
recomputes the mask instead of storing it.

So it saves nothing for the backward pass, autodiff 30 MiB (base, 64 rows of 128 tokens;
`benchmarks/ops.py --compile=`, 2026-11-22). In the v5e step of two unrolled layers XLA recomputes
the mask in either case: autodiff takes 0.7 % fewer cycles and 0.2 % more memory (`--layers=2
--compile=dropout`).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.ops.hashing import hash32
from bert_jax.parallel.collectives import global_row_offset

# Odd constants with well-mixed bits: the golden ratio's and a prime of xxHash32.
_ROW = np.uint32(0x9E3779B9)
_COLUMN = np.uint32(0x85EBCA77)


def keep_mask(key: jax.Array, shape: tuple[int, ...], rate: float) -> jax.Array:
    """Returns a mask that is True with probability 1 - rate, independently for each element.

    The index is hashed in two levels, (all leading dimensions, last dimension), because a global
    batch can hold more than 2**32 elements.
    """
    row = jnp.zeros((*shape[:-1], 1), jnp.uint32)
    for axis, size in enumerate(shape[:-1]):
        row = row * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, row.shape, axis)
        if axis == 0:  # the batch, of which this device may hold a shard
            row = row + jnp.asarray(global_row_offset(size), jnp.uint32)
    column = jax.lax.broadcasted_iota(jnp.uint32, shape, len(shape) - 1)
    bits = hash32(hash32(row * _ROW + key) + column * _COLUMN)
    return bits >= np.uint32(min(round(rate * 2**32), 2**32 - 1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _dropout(x: jax.Array, key: jax.Array, rate: float) -> jax.Array:
    # In float32: bfloat16 would round the scale itself, 1.1111 to 1.1094 at a rate of 0.1.
    scaled = x.astype(jnp.float32) * np.float32(1 / (1 - rate))
    return jnp.where(keep_mask(key, x.shape, rate), scaled, 0).astype(x.dtype)


def _forward(x, key, rate):
    return _dropout(x, key, rate), key


def _backward(rate, key, gradient):
    return _dropout(gradient, key, rate), np.zeros(key.shape, jax.dtypes.float0)


_dropout.defvjp(_forward, _backward)


def dropout(x: jax.Array, *, rate: float, key: jax.Array | None) -> jax.Array:
    """Zeroes elements with probability `rate` and scales the others by 1 / (1 - rate).

    Args:
        x: any shape.
        rate: in [0, 1).
        key: uint32 scalar, or None to leave x as it is (evaluation).
    """
    return x if key is None or rate == 0 else _dropout(x, key, rate)
