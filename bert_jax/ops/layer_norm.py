"""One-pass LayerNorm with a custom gradient.

It saves 12 MiB for the backward pass, autodiff 72 (base, 64 rows of 128 tokens; `benchmarks/ops.py
--compile=`, 2026-11-22). In the v5e step of two unrolled layers XLA recomputes what autodiff saves:
cycles and memory differ by 0.1 % (`--layers=2 --compile=layer_norm`). With a loop over the twelve
layers autodiff takes 5.9 % more cycles and 37 % more memory (`--unroll=1 --compile=layer_norm`).
"""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(x: jax.Array, scale_H: jax.Array, bias_H: jax.Array, eps: float) -> jax.Array:
    """Normalizes the last dimension in float32; returns the dtype of x."""
    return _forward(x, scale_H, bias_H, eps)[0]


def _forward(
    x: jax.Array, scale_H: jax.Array, bias_H: jax.Array, eps: float
) -> tuple[jax.Array, tuple]:
    """Computes mean and variance from the sums of x and x², in one pass over x.

    XLA fuses that pass into the product that computes x. Computing the variance from x - mean needs
    another pass. It is more accurate if the mean of a row is far from zero (here the error is 1e-5
    up to a mean of one standard deviation and 2e-5 at ten), but in this model x is the sum of a
    LayerNorm's output, whose mean is near zero, and a layer's output (of all earlier ones with
    `norm_position="pre"`).
    """
    x32 = x.astype(jnp.float32)
    mean = x32.mean(-1, keepdims=True)
    variance = jnp.square(x32).mean(-1, keepdims=True) - jnp.square(mean)
    reciprocal = jax.lax.rsqrt(jnp.maximum(variance, 0) + eps)
    y = (x32 - mean) * reciprocal * _row(scale_H, x) + _row(bias_H, x)
    return y.astype(x.dtype), (x, mean, reciprocal, scale_H)


def _backward(eps: float, residuals: tuple, dy: jax.Array) -> tuple[jax.Array, ...]:
    """Returns dx, dscale, dbias; with n the normalized x, g = dy·scale and s the deviation of x:

    dx = (g - mean(g) - n·mean(g·n)) / s
    """
    x, mean, reciprocal, scale_H = residuals
    dy = dy.astype(jnp.float32)
    n = (x.astype(jnp.float32) - mean) * reciprocal
    g = dy * _row(scale_H, x)
    dx = g - g.mean(-1, keepdims=True) - n * (g * n).mean(-1, keepdims=True)
    rows = tuple(range(x.ndim - 1))
    return (dx * reciprocal).astype(x.dtype), (dy * n).sum(rows), dy.sum(rows)


layer_norm.defvjp(_forward, _backward)


def _row(vector_H: jax.Array, like: jax.Array) -> jax.Array:
    """[H] -> [1, ..., 1, H], with the rank of `like`."""
    return vector_H.reshape((1,) * (like.ndim - 1) + (-1,))
