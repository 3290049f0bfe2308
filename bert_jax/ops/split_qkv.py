"""Queries, keys and values out of one product, with their biases."""

import jax
import jax.numpy as jnp


@jax.custom_vjp
def split_qkv(qkv_BxSx3xAxD: jax.Array, bias_3xAxD: jax.Array) -> tuple[jax.Array, ...]:
    """Queries, keys and values [B, S, A, D] from the product and its bias.

    Their gradients are summed for the bias one by one, before they are stacked: so each sum is the
    end of the product that makes the gradient. After, it would be a pass of its own over all three.
    """
    return tuple(jnp.unstack(qkv_BxSx3xAxD + bias_3xAxD[None, None], axis=2))


def _forward(qkv_BxSx3xAxD: jax.Array, bias_3xAxD: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
    return split_qkv(qkv_BxSx3xAxD, bias_3xAxD), None


def _backward(_: None, parts_BxSxAxD: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    return jnp.stack(parts_BxSxAxD, axis=2), jnp.stack([d.sum((0, 1)) for d in parts_BxSxAxD])


split_qkv.defvjp(_forward, _backward)
