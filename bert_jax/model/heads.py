"""Layers shared by the heads."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config.schema import ModelConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.model.layers import Axes, Dense, Keys, LayerNorm, activation
from bert_jax.ops.sums import add_bias


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


class TaskHead(nnx.Module):
    """An output layer, with a layer before it in some layouts: see `HeadConfig`."""

    def __init__(self, config: TaskModelConfig, keys: Keys, outputs: int | None = None):
        """outputs: how many, by default one for each label."""
        H, head, self.config = config.hidden_size, config.head, config
        if head.dense:
            scale, bias = config.output_scale, config.linear_bias
            self.dense = Dense(config, keys, (H,), (H,), ("embed", "pooled"), scale, bias)
        if head.norm:
            self.norm = LayerNorm(config, keys)
        shape, axes = (outputs or len(head.labels),), ("embed", "classes")
        self.output = Dense(config, keys, (config.head_width,), shape, axes, config.head_scale)

    def transformed(self, x: jax.Array) -> jax.Array:
        """[..., H] -> what the output layer reads, without dropout."""
        head = self.config.head
        if head.dense == "hidden_act":
            x = activation(self.config, self.dense(x))
        elif head.dense:
            x = {"tanh": jnp.tanh, "relu": jax.nn.relu}[head.dense](self.dense(x))
        return self.norm(x) if head.norm else x


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
    return add_bias(logits_BxPxV, without_padding(config, bias_V))


def without_padding(config: ModelConfig, bias_V: jax.Array) -> jax.Array:
    """Returns the bias of the word scores with -inf in the padding rows of the vocabulary."""
    if config.padded_vocab_size == config.vocab_size:
        return bias_V
    real_V = jnp.arange(config.padded_vocab_size) < config.vocab_size
    return jnp.where(real_V, bias_V, -jnp.inf)
