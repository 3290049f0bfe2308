"""What an objective is: its names, its head, its loss, its cost."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config.schema import DataConfig, ModelConfig, PhaseConfig
from bert_jax.model.layers import Keys
from bert_jax.objectives.corpus import Corpus
from bert_jax.parallel.global_batch import Batch


class Tensor(NamedTuple):
    """A parameter and its counterpart in the state dict of transformers' BERTs."""

    ours: str  # path, such as "mlm.dense.kernel"
    theirs: str  # `{layer}` and `{part}` run over layers and over query, key, value
    inputs: int | None = None  # input dimensions of a kernel; None where the layout is the same
    of_vocabulary: bool = False  # its first dimension is the vocabulary, padding rows included


@dataclasses.dataclass(frozen=True)
class States:
    """What heads read from the encoder."""

    hidden: jax.Array  # states [B, S, H] of the last layer
    table: jax.Array  # word embeddings [V, H]
    pooled: Callable[[jax.Array], jax.Array]  # positions [B, N] -> vectors [B, N, H]

    def at(self, positions_BxP: jax.Array) -> jax.Array:
        """The states [B, P, H] at some positions of each row."""
        return jnp.take_along_axis(self.hidden, positions_BxP[..., None], axis=1)


def at_least_one(count: jax.Array) -> jax.Array:
    return jnp.maximum(count, 1)


@dataclasses.dataclass(frozen=True)
class Objective:
    """A row of `registry.OBJECTIVES`; one file each beside this one.

    The loss of an objective is `sums["loss"]` over the global batch, divided by `denominator` of
    the sum of its weights.
    """

    name: str  # in config.objectives and in front of its metrics: "mlm" of "mlm/loss"
    title: str  # of a table row or a plot
    head: str  # key of its parameters in the model
    weights: str  # array of a batch: the weight of each prediction, 0 or 1
    has_labels: Callable[[DataConfig], bool]  # whether batches of such data hold its labels
    make_head: Callable[[ModelConfig, Keys], nnx.Module]
    logits: Callable[[Any, States, Batch], jax.Array]  # (head, states, batch) -> float32
    # (logits, batch, corpus) -> "loss" (nats), "correct", "count", and what `baselines` reads
    sums: Callable[[jax.Array, Batch, Corpus], dict[str, jax.Array]]
    # (sums, names of the sources) -> metrics of predictions that need no model: "baseline_loss", …
    baselines: Callable[[Mapping[str, Any], Sequence[str]], dict[str, float]]
    flops: Callable[[ModelConfig, PhaseConfig], float]  # of a step's forward pass
    denominator: Callable[[jax.Array], jax.Array] = at_least_one
    needs_pooler: bool = False
    tensors: tuple[Tensor, ...] = ()  # of its head in an export; () where transformers has none
    tensor_prefix: str = ""  # of those that only this head has
    head_title: str = ""  # of a model card; "" where the head is not exported
    card: str = ""  # a sentence of the model card
