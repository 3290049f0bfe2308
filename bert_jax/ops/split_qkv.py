"""Splits the fused query, key and value projection and adds its bias.

In the v5e step of two layers of base autodiff takes 3.3 % more cycles, with the same memory
(`benchmarks/ops.py --layers=2 --compile=split_qkv`, 2026-11-22).
"""

import jax
import jax.numpy as jnp


def split_qkv(qkv_BxSx3xAxD: jax.Array, bias_3xAxD: jax.Array | None) -> tuple[jax.Array, ...]:
    """Returns queries, keys and values [B, S, A, D] from the fused product and its bias."""
    if bias_3xAxD is None:
        return tuple(jnp.unstack(qkv_BxSx3xAxD, axis=2))
    return _split_qkv(qkv_BxSx3xAxD, bias_3xAxD)


@jax.custom_vjp
def _split_qkv(qkv_BxSx3xAxD: jax.Array, bias_3xAxD: jax.Array) -> tuple[jax.Array, ...]:
    """Adds the bias and splits.

    The bias gradient sums each of the three gradients before they are stacked, so XLA fuses each
    sum into the product that computes the gradient. After stacking it would need another pass.
    """
    return tuple(jnp.unstack(qkv_BxSx3xAxD + bias_3xAxD[None, None], axis=2))


def _forward(qkv_BxSx3xAxD: jax.Array, bias_3xAxD: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
    return _split_qkv(qkv_BxSx3xAxD, bias_3xAxD), None


def _backward(_: None, parts_BxSxAxD: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    return jnp.stack(parts_BxSxAxD, axis=2), jnp.stack([d.sum((0, 1)) for d in parts_BxSxAxD])


_split_qkv.defvjp(_forward, _backward)
