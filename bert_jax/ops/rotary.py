"""Rotary position embeddings (Su et al. 2021, arXiv:2104.09864) in RoFormer's order of dimensions.

At position p, each pair of neighbouring dimensions (2i, 2i+1) of queries and keys is rotated by the
angle p / 10000^(2i/D). A score then depends on the distance between two positions only.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

_BASE = 10_000.0


class Rotation(NamedTuple):
    """Cosine and sine of each position's angle in each dimension, float32 [B, S, 1, D]."""

    cos: jax.Array
    sin: jax.Array  # negative in even dimensions


def rotation(positions_BxS: jax.Array, head_dim: int) -> Rotation:
    """Returns the rotation of each position, which all layers and heads share."""
    dims_D = jnp.arange(head_dim)
    frequencies_D = _BASE ** -((dims_D - dims_D % 2) / head_dim)
    angles = positions_BxS[..., None, None] * frequencies_D[None, None, None]
    signs_D = jnp.where(dims_D % 2, 1.0, -1.0)
    return Rotation(jnp.cos(angles), jnp.sin(angles) * signs_D[None, None, None])


def rotate(x_BxSxAxD: jax.Array, by: Rotation) -> jax.Array:
    """Rotates queries or keys, in float32; returns the dtype of x."""
    x = x_BxSxAxD.astype(jnp.float32)
    even_D = jnp.arange(x.shape[-1]) % 2 == 0
    partners = jnp.where(even_D[None, None, None], jnp.roll(x, -1, -1), jnp.roll(x, 1, -1))
    return (x * by.cos + partners * by.sin).astype(x_BxSxAxD.dtype)
