"""The two layers everything is made of, and how a parameter is declared."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import Initializer, ones, truncated_normal, zeros

from bert_jax.config import ModelConfig

Axes = tuple[str, ...]  # logical names, one per dimension; sharding.py maps them to the mesh


def param(rngs: nnx.Rngs, shape: Sequence[int], axes: Axes, init: Initializer) -> nnx.Param:
    """A float32 parameter with a logical name for each dimension."""
    return nnx.Param(init(rngs.params(), tuple(shape), jnp.float32), axes=axes)


class Dense(nnx.Module):
    """y = x · kernel + bias, over any number of input and output dimensions.

    Weights are drawn from a normal cut at two standard deviations (modeling.py:375-377 of
    google-research/bert), biases start at zero.
    """

    def __init__(
        self,
        config: ModelConfig,
        rngs: nnx.Rngs,
        inputs: Sequence[int],
        outputs: Sequence[int],
        axes: Axes,
    ):
        self.contracted = len(inputs)
        init = truncated_normal(config.initializer_range)
        self.kernel = param(rngs, (*inputs, *outputs), axes, init)
        self.bias = param(rngs, outputs, axes[len(inputs) :], zeros)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., *inputs] -> [..., *outputs], in the type of x."""
        n = self.contracted
        dims = ((tuple(range(x.ndim - n, x.ndim)), tuple(range(n))), ((), ()))
        y = jax.lax.dot_general(x, self.kernel[...].astype(x.dtype), dims)
        bias = self.bias[...].astype(x.dtype)
        return y + bias.reshape((1,) * (y.ndim - bias.ndim) + bias.shape)


class LayerNorm(nnx.Module):
    """Normalizes the last dimension in float32, the variance from the differences to the mean."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.eps = config.layer_norm_eps
        self.scale = param(rngs, (config.hidden_size,), ("norm",), ones)
        self.bias = param(rngs, (config.hidden_size,), ("norm",), zeros)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., H] -> [..., H], in the type of x."""
        x32 = x.astype(jnp.float32)
        centered = x32 - x32.mean(-1, keepdims=True)
        normal = centered * jax.lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + self.eps)
        shape = (1,) * (x.ndim - 1) + (-1,)
        y = normal * self.scale[...].reshape(shape) + self.bias[...].reshape(shape)
        return y.astype(x.dtype)


def activation(config: ModelConfig, x: jax.Array) -> jax.Array:
    """GELU: with erf as in the 2018 release, or its tanh approximation (bert bee6030, 2019)."""
    return jax.nn.gelu(x, approximate=config.hidden_act == "gelu_tanh")
