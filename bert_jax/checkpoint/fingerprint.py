"""Fingerprints of arrays: 64 bits that any changed bit changes, however the array is laid out.

A fingerprint is two sums, modulo 2**32, over all words of an array. What is added for a word is a
bijection of the word, another one at every position. So a single changed word, be it by one bit or
by all, always changes both sums; any other difference (two elements swapped, a block zeroed) passes
unseen with a chance of 2**-64. Integer addition commutes, so neither the sharding nor the number of
processes nor the order of the sum matters, and a fingerprint is computed where the array lies.

A word is 32 bits: an element of 4 bytes, one of 1 or 2 bytes widened by zeros, half of one of 8.
A position is known by one 32-bit number for each dimension, so any shape will do whose dimensions
are below 2**32 each; the number of elements is not limited. Shape and type are not part of it.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

# Bijections of 32-bit numbers, x → (x ^ x >> a)·m ^ … : the finalizer of MurmurHash3 (A. Appleby)
# and lowbias32 (C. Wellons, "Prospecting for hash functions", 2018). Shifts, then odd factors.
MIXERS = (
    ((16, 13, 16), (0x85EBCA6B, 0xC2B2AE35)),
    ((16, 15, 15), (0x21F0AAAD, 0xD35A2D97)),
)
STRIDE = 0x9E3779B9  # 2**32 / golden ratio: sets the numbers of dimensions apart
_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}


def fingerprints(tree: Any) -> dict[str, str]:
    """Path of each leaf (see `path_of`) -> its fingerprint, 16 hexadecimal digits.

    One program computes them all, on the devices that hold the arrays; every process gets them.
    Where arrays are split over processes, all processes must call this.

    Raises:
        TypeError: a leaf of complex numbers or of numbers smaller than a byte.
    """
    return named(tree, program(mesh_of(tree))(tree))


def named(tree: Any, sums: jax.Array) -> dict[str, str]:
    """What `program` gave for this tree, as text."""
    paths = [path_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    return {
        path: f"{int(one):08x}{int(other):08x}"
        for path, (one, other) in zip(paths, np.asarray(sums), strict=True)
    }


def path_of(path: tuple) -> str:
    """A path in a tree as text: params/encoder/word."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def mesh_of(tree: Any) -> Any:
    """The mesh that the arrays (or ShapeDtypeStructs) of a tree lie on, None if on no mesh."""
    layouts = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(tree))
    return next((s.mesh for s in layouts if isinstance(s, NamedSharding)), None)


@functools.lru_cache
def program(mesh: Any) -> Any:
    """A jitted function: tree of arrays -> uint32 [leaves, 2], whole on every device of a mesh."""
    whole = None if mesh is None else NamedSharding(mesh, P())

    def sums(tree: Any) -> jax.Array:
        leaves = jax.tree.leaves(tree)
        return jnp.array([_sums(x) for x in leaves], jnp.uint32).reshape(len(leaves), 2)

    return jax.jit(sums, out_shardings=whole)


def _sums(x: jax.Array) -> tuple[jax.Array, ...]:
    words = _words(x)
    mixed = [_mix(words ^ _positions(words.shape, which), which) for which in range(len(MIXERS))]
    zeros = [jnp.uint32(0)] * len(MIXERS)
    # Both at once: XLA for CPUs would write what goes into a simple sum to memory first.
    return lax.reduce(mixed, zeros, lambda a, b: jax.tree.map(jnp.add, a, b), range(words.ndim))


def _words(x: jax.Array) -> jax.Array:
    """uint32 of the array's shape; elements of 8 bytes have a last dimension of 2 more."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    small = jnp.issubdtype(x.dtype, jnp.integer) and jnp.iinfo(x.dtype).bits < 8
    if small or jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"no fingerprint of {x.dtype}")
    return lax.bitcast_convert_type(x, _WORDS[x.dtype.itemsize]).astype(jnp.uint32)


def _positions(shape: tuple[int, ...], which: int) -> jax.Array:
    """uint32 of this shape: a number for each position, the sum of one for each coordinate."""
    total = jnp.zeros(shape, jnp.uint32)
    for dim, size in enumerate(shape):
        start = jnp.uint32((dim + 1) * STRIDE % 2**32)
        own = _mix(lax.iota(jnp.uint32, size) + start, which)
        # Computed once for each coordinate, not once for each element.
        own = lax.optimization_barrier(own)
        total = total + lax.broadcast_in_dim(own, shape, (dim,))
    return total


def _mix(x: jax.Array, which: int) -> jax.Array:
    (first, second, third), (one, two) = MIXERS[which]
    x = (x ^ (x >> first)) * jnp.uint32(one)
    x = (x ^ (x >> second)) * jnp.uint32(two)
    return x ^ (x >> third)


def described(tree: Mapping[str, Any]) -> dict[str, str]:
    """Path of each leaf -> its type and shape as text, such as float32[2,3]."""
    return {
        path_of(path): f"{np.dtype(leaf.dtype).name}[{','.join(map(str, leaf.shape))}]"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
