"""Dense and LayerNorm, the activation, and the declaration of parameters.

Their gradients are in bert_jax/ops, which choose the residuals of the backward pass: an activation
stores its input, a LayerNorm its input and two numbers per row.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import Initializer, ones, truncated_normal, zeros

from bert_jax.config.schema import ModelConfig
from bert_jax.ops.gelu import gelu
from bert_jax.ops.layer_norm import layer_norm
from bert_jax.ops.product import product

Axes = tuple[str, ...]  # logical names, one per dimension; parallel/partition.py maps them


class Keys:
    """A sequence of random keys from one key, the same as that of `nnx.Rngs`.

    `nnx.Rngs` stores its count in a Variable. While tracing, flax 0.12 queries the sharding of such
    a Variable, JAX raises an error, and its message formats the full program so far, for each key.
    """

    def __init__(self, key: jax.Array):
        self._key, self._count = key, 0

    def __call__(self) -> jax.Array:
        key = jax.random.fold_in(self._key, self._count)
        self._count += 1
        return key


def param(keys: Keys, shape: Sequence[int], axes: Axes, init: Initializer) -> nnx.Param:
    """Returns a float32 parameter with a logical axis name for each dimension."""
    return nnx.Param(init(keys(), tuple(shape), jnp.float32), axes=axes)


class Dense(nnx.Module):
    """y = x · kernel + bias, over any number of input and output dimensions.

    Kernels are initialized from a normal distribution truncated at two standard deviations
    (modeling.py:375-377 of google-research/bert), biases with zeros.
    """

    def __init__(
        self,
        config: ModelConfig,
        keys: Keys,
        inputs: Sequence[int],
        outputs: Sequence[int],
        axes: Axes,
        scale: float = 1.0,
        bias: bool = True,
        init: Initializer | None = None,
    ):
        """scale: of the initial kernel; init: another way to draw it, without a scale."""
        self.contracted = len(inputs)
        init = init or truncated_normal(config.initializer_range * scale)
        self.kernel = param(keys, (*inputs, *outputs), axes, init)
        self.bias: Any = param(keys, outputs, axes[len(inputs) :], zeros) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., *inputs] -> [..., *outputs], in the dtype of x."""
        y = self.product(x)
        if self.bias is None:
            return y
        bias = self.bias[...].astype(x.dtype)
        return y + bias.reshape((1,) * (y.ndim - bias.ndim) + bias.shape)

    def product(self, x: jax.Array) -> jax.Array:
        """Returns x · kernel, without the bias."""
        return product(x, self.kernel[...].astype(x.dtype), self.contracted)


class LayerNorm(nnx.Module):
    """Normalizes the last dimension, in float32."""

    def __init__(self, config: ModelConfig, keys: Keys, size: int | None = None):
        """size: of that dimension, by default the hidden size."""
        self.eps, size = config.layer_norm_eps, size or config.hidden_size
        self.scale = param(keys, (size,), ("norm",), ones)
        self.bias = param(keys, (size,), ("norm",), zeros) if config.norm_bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., H] -> [..., H], in the dtype of x."""
        bias_H = jnp.zeros_like(self.scale[...]) if self.bias is None else self.bias[...]
        return layer_norm(x, self.scale[...], bias_H, self.eps)


def residual(
    config: ModelConfig,
    norm: LayerNorm,
    x: jax.Array,
    branch: Callable[[jax.Array], jax.Array],
    *,
    normed: bool = True,
) -> jax.Array:
    """Returns x + branch(x), normalized: the sum ("post", as BERT), or the branch's input ("pre"),
    unless that is not `normed`.

    With "pre" the sums themselves are never normalized, so gradients are well-scaled from the first
    step, and higher learning rates are stable (Xiong et al. 2020, arXiv:2002.04745).
    """
    y = x + branch(branch_input(config, norm, x) if normed else x)
    return y if config.norm_position == "pre" else norm(y)


def branch_input(config: ModelConfig, norm: LayerNorm, x: jax.Array) -> jax.Array:
    """Returns what the branch of a residual sum computes on, from the hidden states x."""
    return norm(x) if config.norm_position == "pre" else x


def activation(config: ModelConfig, x: jax.Array) -> jax.Array:
    """Returns GELU: with erf (2018 release) or its tanh approximation (bert bee6030, 2019)."""
    return gelu(x, config.hidden_act == "gelu_tanh")
