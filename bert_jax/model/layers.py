"""The two layers everything is made of, their activation, and how a parameter is declared.

What is kept for the backward pass is chosen here, since XLA recomputes what is cheap inside of the
products that need it, but only from what there is: of an activation its argument, of a LayerNorm
its argument with two numbers a row.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import Initializer, ones, truncated_normal, zeros

from bert_jax.config.schema import ModelConfig
from bert_jax.ops.gelu import gelu
from bert_jax.ops.layer_norm import layer_norm

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
        return layer_norm(x, self.scale[...], self.bias[...], self.eps)


def activation(config: ModelConfig, x: jax.Array) -> jax.Array:
    """GELU: with erf as in the 2018 release, or its tanh approximation (bert bee6030, 2019)."""
    return gelu(x, config.hidden_act == "gelu_tanh")
