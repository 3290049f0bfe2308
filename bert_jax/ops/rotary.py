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


@jax.custom_vjp
def rotate(x_BxSxAxD: jax.Array, by: Rotation) -> jax.Array:
    """Rotates queries or keys, in float32; returns the dtype of x.

    A product with a constant matrix exchanges the dimensions of each pair: XLA fuses the rotation
    into it, and moves the elements of neither slices nor reversed arrays well on a TPU.
    """
    D = x_BxSxAxD.shape[-1]
    exchange_DxD = jnp.eye(D, dtype=x_BxSxAxD.dtype)[jnp.arange(D) ^ 1]
    partners = jax.lax.dot_general(
        x_BxSxAxD, exchange_DxD, (((3,), (0,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32,
    )  # fmt: skip
    return (x_BxSxAxD.astype(jnp.float32) * by.cos + partners * by.sin).astype(x_BxSxAxD.dtype)


def _forward(x_BxSxAxD: jax.Array, by: Rotation) -> tuple[jax.Array, Rotation]:
    return rotate(x_BxSxAxD, by), by


def _backward(by: Rotation, gradient: jax.Array) -> tuple[jax.Array, None]:
    return rotate(gradient, Rotation(by.cos, -by.sin)), None


rotate.defvjp(_forward, _backward)
