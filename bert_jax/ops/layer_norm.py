"""LayerNorm in one pass, with its gradient."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(x: jax.Array, scale_H: jax.Array, bias_H: jax.Array, eps: float) -> jax.Array:
    return _forward(x, scale_H, bias_H, eps)[0]


def _forward(
    x: jax.Array, scale_H: jax.Array, bias_H: jax.Array, eps: float
) -> tuple[jax.Array, tuple]:
    """Mean and variance from the sums of x and of its square, which one pass over x gives.

    That pass is the end of the product that makes x. The variance from the differences to the mean
    would be a pass of its own. It is more exact where the mean of a row is far from zero (here the
    result is good to 1e-5 up to a mean of one standard deviation, to 2e-5 at ten of them), but in
    this model x is the sum of a LayerNorm's result, whose mean is near zero, and of a layer's.
    """
    x32 = x.astype(jnp.float32)
    mean = x32.mean(-1, keepdims=True)
    variance = jnp.square(x32).mean(-1, keepdims=True) - jnp.square(mean)
    reciprocal = jax.lax.rsqrt(jnp.maximum(variance, 0) + eps)
    y = (x32 - mean) * reciprocal * _row(scale_H, x) + _row(bias_H, x)
    return y.astype(x.dtype), (x, mean, reciprocal, scale_H)


def _backward(eps: float, kept: tuple, dy: jax.Array) -> tuple[jax.Array, ...]:
    """With n the normalized x and g = dy·scale: dx = (g - mean(g) - n·mean(g·n)) / deviation."""
    x, mean, reciprocal, scale_H = kept
    dy = dy.astype(jnp.float32)
    n = (x.astype(jnp.float32) - mean) * reciprocal
    g = dy * _row(scale_H, x)
    dx = g - g.mean(-1, keepdims=True) - n * (g * n).mean(-1, keepdims=True)
    rows = tuple(range(x.ndim - 1))
    return (dx * reciprocal).astype(x.dtype), (dy * n).sum(rows), dy.sum(rows)


layer_norm.defvjp(_forward, _backward)


def _row(vector_H: jax.Array, like: jax.Array) -> jax.Array:
    """[H] -> [1, ..., 1, H], with as many dimensions as the other."""
    return vector_H.reshape((1,) * (like.ndim - 1) + (-1,))
