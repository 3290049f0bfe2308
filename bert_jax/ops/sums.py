"""Sums over the positions of wide arrays, as each backend computes them fast."""

import jax
import jax.numpy as jnp


@jax.custom_vjp
def add_bias(x_BxPxV: jax.Array, bias_V: jax.Array) -> jax.Array:
    """Returns x + bias, float32 [B, P, V]; the gradient of the bias is `over_positions`."""
    return x_BxPxV + bias_V[None, None, :]


def over_positions(x: jax.Array) -> jax.Array:
    """Returns the sums over B and P of x [..., B, P, V], float32 [..., V].

    On CPUs they are a product with ones: XLA sums wide columns there in steps of whole rows, which
    takes about 35 times as long as the product at V of 30,592 and 63 times at 50,368 (JAX 0.10.2).
    """
    return jax.lax.platform_dependent(x, cpu=_product_with_ones, default=_sum)


def _product_with_ones(x: jax.Array) -> jax.Array:
    ones_BxP = jnp.ones(x.shape[-3:-1], x.dtype)
    return jnp.einsum("bp,...bpv->...v", ones_BxP, x, preferred_element_type=jnp.float32)


def _sum(x: jax.Array) -> jax.Array:
    return x.sum((-3, -2), dtype=jnp.float32)


def _forward(x_BxPxV: jax.Array, bias_V: jax.Array) -> tuple[jax.Array, None]:
    return add_bias(x_BxPxV, bias_V), None


def _backward(_: None, gradient_BxPxV: jax.Array) -> tuple[jax.Array, jax.Array]:
    return gradient_BxPxV, over_positions(gradient_BxPxV)


add_bias.defvjp(_forward, _backward)
