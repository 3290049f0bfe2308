"""Fingerprints of arrays: 64-bit checksums that do not depend on the sharding.

A fingerprint is two sums, modulo 2**32, over all words of an array. Each term is a bijection of the
word, a different one at every position. So a single changed word, by one bit or by all, always
changes both sums; any other difference (two elements swapped, a block zeroed) goes undetected with
probability 2**-64. Integer addition commutes, so neither the sharding nor the number of processes
nor the order of summation matters, and each device sums its own shards.

A word is 32 bits: a 4-byte element, a 1- or 2-byte element padded with zeros, or half of an 8-byte
element. A position is given by one 32-bit number per dimension, so every dimension must be below
2**32; the number of elements is not limited. Shape and dtype are not part of the fingerprint.
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
STRIDE = 0x9E3779B9  # 2**32 / golden ratio: makes the numbers of dimensions differ
_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}


def fingerprints(tree: Any) -> dict[str, str]:
    """Returns path of each leaf (see `path_of`) -> its fingerprint, 16 hexadecimal digits.

    One program computes them all on the devices that hold the arrays; every process gets them.
    If arrays are sharded over processes, all processes must call this.

    Raises:
        TypeError: a leaf is complex or has elements smaller than a byte.
    """
    return named(tree, program(mesh_of(tree))(tree))


def named(tree: Any, sums: jax.Array) -> dict[str, str]:
    """Returns the output of `program` for this tree as path -> fingerprint."""
    return {
        path: f"{int(first):08x}{int(second):08x}"
        for path, (first, second) in zip(by_path(tree), np.asarray(sums), strict=True)
    }


def path_of(path: tuple) -> str:
    """Returns a path in a tree as text, such as params/encoder/word."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def by_path(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree by their paths, see `path_of`."""
    return {path_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def mesh_of(tree: Any) -> Any:
    """Returns the mesh of a tree's arrays (or ShapeDtypeStructs), None if they have none."""
    shardings = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(tree))
    return next((s.mesh for s in shardings if isinstance(s, NamedSharding)), None)


@functools.lru_cache
def program(mesh: Any) -> Any:
    """Returns a jitted function: tree of arrays -> uint32 [leaves, 2], replicated over the mesh."""
    replicated = None if mesh is None else NamedSharding(mesh, P())

    def sums(tree: Any) -> jax.Array:
        leaves = jax.tree.leaves(tree)
        return jnp.array([_sums(x) for x in leaves], jnp.uint32).reshape(len(leaves), 2)

    return jax.jit(sums, out_shardings=replicated)


@jax.jit  # traced once for all leaves of a shape, such as a parameter and its moments
def _sums(x: jax.Array) -> tuple[jax.Array, ...]:
    words = _words(x)
    mixed = [_mix(words ^ _positions(words.shape, which), which) for which in range(len(MIXERS))]
    zeros = [jnp.uint32(0)] * len(MIXERS)
    # One reduction for both: XLA for CPUs would write the input of a plain sum to memory first.
    return lax.reduce(mixed, zeros, lambda a, b: jax.tree.map(jnp.add, a, b), range(words.ndim))


def _words(x: jax.Array) -> jax.Array:
    """Returns uint32 of the array's shape, with a trailing dimension of 2 for 8-byte elements."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    small = jnp.issubdtype(x.dtype, jnp.integer) and jnp.iinfo(x.dtype).bits < 8
    if small or jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"no fingerprint of {x.dtype}")
    return lax.bitcast_convert_type(x, _WORDS[x.dtype.itemsize]).astype(jnp.uint32)


def _positions(shape: tuple[int, ...], which: int) -> jax.Array:
    """Returns uint32 of this shape: a number per position, the sum of one per coordinate."""
    total = jnp.zeros(shape, jnp.uint32)
    for dim, size in enumerate(shape):
        start = jnp.uint32((dim + 1) * STRIDE % 2**32)
        own = _mix(lax.iota(jnp.uint32, size) + start, which)
        # Keeps XLA from recomputing it for every element.
        own = lax.optimization_barrier(own)
        total = total + lax.broadcast_in_dim(own, shape, (dim,))
    return total


def _mix(x: jax.Array, which: int) -> jax.Array:
    shifts, factors = MIXERS[which]
    x = (x ^ (x >> shifts[0])) * jnp.uint32(factors[0])
    x = (x ^ (x >> shifts[1])) * jnp.uint32(factors[1])
    return x ^ (x >> shifts[2])


def described(tree: Mapping[str, Any]) -> dict[str, str]:
    """Returns path of each leaf -> its dtype and shape as text, such as float32[2,3]."""
    return {
        path: f"{np.dtype(leaf.dtype).name}[{','.join(map(str, leaf.shape))}]"
        for path, leaf in by_path(tree).items()
    }
