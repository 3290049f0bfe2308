"""Vectors of texts, shared by the objectives that compare them: the head that makes them.

Each text is a sequence of its own. A head pools the states of its tokens, as sentence-transformers
does, and has parameters only where dense layers follow. Sizes: B rows, N examples in a row, C texts
of each, D numbers of a vector; R examples of this device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config.schema import PhaseConfig
from bert_jax.config.task_model import TaskModelConfig, VectorConfig
from bert_jax.model.layers import Keys
from bert_jax.model.vector_layers import add_layers, apply_layers
from bert_jax.objectives.objective import States
from bert_jax.parallel.global_batch import Batch

_SHORTEST = 1e-12  # length by which a vector is divided, as in torch.nn.functional.normalize


@partial(jax.tree_util.register_dataclass, data_fields=("values",), meta_fields=("settings",))
@dataclass(frozen=True)
class Vectors:
    """The output of a head of vectors, in place of logits.

    Attributes:
        values: of each sequence, float32 [B, N·C, D].
        settings: how they are compared.
    """

    values: jax.Array
    settings: VectorConfig

    def of_examples(self, like: jax.Array) -> jax.Array:
        """Returns the vectors as [*like.shape, C, D]; like: an array of the examples, [B, N]."""
        return self.values.reshape(*like.shape, -1, self.values.shape[-1])


class SentenceHead(nnx.Module):
    """The pool over a text's tokens, dense layers, and the division by the length."""

    def __init__(self, config: TaskModelConfig, keys: Keys):
        self.config = config
        add_layers(self, keys, settings_of(config).dense)

    def vectors(self, states: States, batch: Batch) -> jax.Array:
        """Returns the vector of each sequence, float32 [B, N·C, D]; of an empty place any."""
        pooled = states.of_texts(batch["cls_positions"], self.config.head.pools)
        x = self.of_pooled(pooled.astype(jnp.float32))
        return unit(x) if settings_of(self.config).normalize else x

    def of_pooled(self, x: jax.Array) -> jax.Array:
        """Returns what the dense layers make of pooled states, float32 [B, N·C, D]."""
        return apply_layers(self, settings_of(self.config).dense, x)


def sentence_vectors(head: SentenceHead, states: States, batch: Batch) -> Vectors:
    """Returns the vector of each sequence with what compares them."""
    return Vectors(head.vectors(states, batch), settings_of(head.config))


def settings_of(config: TaskModelConfig) -> VectorConfig:
    """Returns the settings of a model with such a head."""
    assert config.head.vectors is not None
    return config.head.vectors


def width_axis(config: TaskModelConfig) -> str:
    """Returns the logical axis of the numbers of a vector: dense layers may make any number of
    them, which a mesh need not divide."""
    return "pooled" if settings_of(config).dense else "embed"


def unit(x: jax.Array) -> jax.Array:
    """Returns vectors [..., D] divided by their length; 0 stays 0, with a gradient of 0."""
    square = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(square, _SHORTEST**2))


def widths(settings: VectorConfig, whole: int) -> Sequence[int]:
    """Returns the widths at which a loss is computed; the loss is their sum, as in Matryoshka
    representations (arXiv 2205.13147) with sentence-transformers' weights of 1."""
    return (whole, *settings.dimensions)


def cosines(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the cosine of each pair of vectors [..., D], [...]."""
    return jnp.sum(unit(x) * unit(y), axis=-1)


def all_cosines(x_RxD: jax.Array, y_KxD: jax.Array) -> jax.Array:
    """Returns the cosines of all pairs, [R, K], in float32 on every device."""
    return jnp.einsum("rd,kd->rk", unit(x_RxD), unit(y_KxD), precision=jax.lax.Precision.HIGHEST)


def dense_flops(model: TaskModelConfig, phase: PhaseConfig, texts: int = 2) -> float:
    """The dense layers; texts: of an example, without hard negatives, which the data may have."""
    weights = sum(
        math.prod(shape)
        for part in settings_of(model).dense
        for shape in part.shapes.values()
        if len(shape) > 1
    )
    return 2.0 * phase.batch_size * phase.examples_per_row * texts * weights
