"""Layers shared by the heads."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config.schema import ModelConfig
from bert_jax.model.layers import Axes, Dense, Keys, LayerNorm, activation


class Transform(nnx.Module):
    """LayerNorm(activation(dense(x))), projected to the width of the word embeddings."""

    def __init__(self, config: ModelConfig, keys: Keys, size: int, axes: Axes):
        """size: input size; axes: logical names of the kernel's two dimensions."""
        self.config = config
        E, scale, bias = config.table_width, config.output_scale, config.linear_bias
        self.dense = Dense(config, keys, (size,), (E,), axes, scale, bias)
        self.norm = LayerNorm(config, keys, E)

    def __call__(self, x_BxPxI: jax.Array) -> jax.Array:
        """[B, P, size] -> [B, P, E], in the dtype of x."""
        return self.norm(activation(self.config, self.dense(x_BxPxI)))


def class_logits(output: Dense, x_BxNxH: jax.Array) -> jax.Array:
    """Returns float32 logits [B, N, C], never rounded to the compute dtype."""
    kernel_HxC = output.kernel[...].astype(x_BxNxH.dtype)
    logits_BxNxC = jnp.einsum(
        "bnh,hc->bnc", x_BxNxH, kernel_HxC, preferred_element_type=jnp.float32
    )
    return logits_BxNxC + output.bias[...][None, None, :]


def word_logits(
    config: ModelConfig, y_BxPxE: jax.Array, table_VxE: jax.Array, bias_V: jax.Array
) -> jax.Array:
    """Returns float32 logits [B, P, V]; padding rows of the vocabulary get -inf."""
    logits_BxPxV = jnp.einsum(
        "bph,vh->bpv", y_BxPxE, table_VxE.astype(y_BxPxE.dtype),
        preferred_element_type=jnp.float32,
    )  # fmt: skip
    if config.padded_vocab_size > config.vocab_size:
        real_V = jnp.arange(config.padded_vocab_size) < config.vocab_size
        bias_V = jnp.where(real_V, bias_V, -jnp.inf)
    return logits_BxPxV + bias_V[None, None, :]
