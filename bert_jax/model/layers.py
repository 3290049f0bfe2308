"""The two layers everything is made of, their activation, and how a parameter is declared.

What is kept for the backward pass is chosen here, since XLA recomputes what is cheap inside of the
products that need it, but only from what there is: of an activation its argument, of a LayerNorm
its argument with two numbers a row.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn.initializers import Initializer, ones, truncated_normal, zeros

from bert_jax.config.schema import ModelConfig

Axes = tuple[str, ...]  # logical names, one per dimension; parallel/partition.py maps them


class Keys:
    """Random keys made from one, in order: the keys that `nnx.Rngs` makes from it.

    `nnx.Rngs` counts in a Variable. Under a trace flax 0.12 asks such a Variable for its sharding,
    JAX answers with an error, and its message prints the whole program so far, for each key.
    """

    def __init__(self, key: jax.Array):
        self._key, self._count = key, 0

    def __call__(self) -> jax.Array:
        key = jax.random.fold_in(self._key, self._count)
        self._count += 1
        return key


def param(keys: Keys, shape: Sequence[int], axes: Axes, init: Initializer) -> nnx.Param:
    """A float32 parameter with a logical name for each dimension."""
    return nnx.Param(init(keys(), tuple(shape), jnp.float32), axes=axes)


class Dense(nnx.Module):
    """y = x · kernel + bias, over any number of input and output dimensions.

    Weights are drawn from a normal cut at two standard deviations (modeling.py:375-377 of
    google-research/bert), biases start at zero.
    """

    def __init__(
        self,
        config: ModelConfig,
        keys: Keys,
        inputs: Sequence[int],
        outputs: Sequence[int],
        axes: Axes,
    ):
        self.contracted = len(inputs)
        init = truncated_normal(config.initializer_range)
        self.kernel = param(keys, (*inputs, *outputs), axes, init)
        self.bias = param(keys, outputs, axes[len(inputs) :], zeros)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., *inputs] -> [..., *outputs], in the type of x."""
        y = self.product(x)
        bias = self.bias[...].astype(x.dtype)
        return y + bias.reshape((1,) * (y.ndim - bias.ndim) + bias.shape)

    def product(self, x: jax.Array) -> jax.Array:
        """The same without the bias."""
        n = self.contracted
        dims = ((tuple(range(x.ndim - n, x.ndim)), tuple(range(n))), ((), ()))
        return jax.lax.dot_general(x, self.kernel[...].astype(x.dtype), dims)


class LayerNorm(nnx.Module):
    """Normalizes the last dimension, in float32."""

    def __init__(self, config: ModelConfig, keys: Keys):
        self.eps = config.layer_norm_eps
        self.scale = param(keys, (config.hidden_size,), ("norm",), ones)
        self.bias = param(keys, (config.hidden_size,), ("norm",), zeros)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., H] -> [..., H], in the type of x."""
        return _layer_norm(x, self.scale[...], self.bias[...], self.eps)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _layer_norm(x: jax.Array, scale_H: jax.Array, bias_H: jax.Array, eps: float) -> jax.Array:
    return _layer_norm_forward(x, scale_H, bias_H, eps)[0]


def _layer_norm_forward(
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


def _layer_norm_backward(eps: float, kept: tuple, dy: jax.Array) -> tuple[jax.Array, ...]:
    """With n the normalized x and g = dy·scale: dx = (g - mean(g) - n·mean(g·n)) / deviation."""
    x, mean, reciprocal, scale_H = kept
    dy = dy.astype(jnp.float32)
    n = (x.astype(jnp.float32) - mean) * reciprocal
    g = dy * _row(scale_H, x)
    dx = g - g.mean(-1, keepdims=True) - n * (g * n).mean(-1, keepdims=True)
    rows = tuple(range(x.ndim - 1))
    return (dx * reciprocal).astype(x.dtype), (dy * n).sum(rows), dy.sum(rows)


_layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


def _row(vector_H: jax.Array, like: jax.Array) -> jax.Array:
    """[H] -> [1, ..., 1, H], with as many dimensions as the other."""
    return vector_H.reshape((1,) * (like.ndim - 1) + (-1,))


def activation(config: ModelConfig, x: jax.Array) -> jax.Array:
    """GELU: with erf as in the 2018 release, or its tanh approximation (bert bee6030, 2019)."""
    return _gelu(x, config.hidden_act == "gelu_tanh")


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gelu(x: jax.Array, tanh: bool) -> jax.Array:
    return _gelu32(x.astype(jnp.float32), tanh).astype(x.dtype)


def _gelu32(x: jax.Array, tanh: bool) -> jax.Array:
    if tanh:
        return jax.nn.gelu(x, approximate=True)
    # Not jax.nn.gelu's erfc, which is two series and an exponential.
    return x * (0.5 + 0.5 * jax.lax.erf(x * np.float32(0.5**0.5)))


def _gelu_forward(x: jax.Array, tanh: bool) -> tuple[jax.Array, jax.Array]:
    return _gelu(x, tanh), x


def _gelu_backward(tanh: bool, x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    _, gradient = jax.vjp(lambda x: _gelu32(x, tanh), x.astype(jnp.float32))
    (dx,) = gradient(dy.astype(jnp.float32))
    return (dx.astype(x.dtype),)


_gelu.defvjp(_gelu_forward, _gelu_backward)
