"""32-bit hashes: counter-based random numbers on the device."""

import jax
import jax.numpy as jnp
import numpy as np

# Odd constants with well-mixed bits: the golden ratio's and a prime of xxHash32.
_KEY = np.uint32(0x9E3779B9)
_WORD = np.uint32(0x85EBCA77)


def hash32(x: jax.Array) -> jax.Array:
    """Returns a low-bias 32-bit hash: an input bit flips each output bit about half the time.

    Constants from "lowbias32" (C. Wellons, hash-prospector).
    """
    x = x ^ (x >> 16)
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> 15)
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def fold_key(key: jax.Array | int, word: jax.Array | int) -> jax.Array:
    """Returns a new key from a key and a number (a step, a layer, a position in the layer)."""
    return hash32(
        hash32(jnp.asarray(key, jnp.uint32) + _KEY) ^ (jnp.asarray(word, jnp.uint32) * _WORD)
    )
