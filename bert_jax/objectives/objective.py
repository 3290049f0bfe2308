"""The interface of an objective: names, head, loss and cost."""

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
    """A parameter and its counterpart in the state dict of BERT models in transformers."""

    ours: str  # path, such as "mlm.dense.kernel"
    theirs: str  # `{layer}` is the layer; `{part}` is query, key or value
    inputs: int | None = None  # number of input dimensions of a kernel; None if not transposed
    of_vocabulary: bool = False  # first dimension is the vocabulary, with padding rows


@dataclasses.dataclass(frozen=True)
class States:
    """The encoder outputs that heads read."""

    hidden: jax.Array  # states [B, S, H] of the last layer
    table: jax.Array  # word embeddings [V, H]
    pooled: Callable[[jax.Array], jax.Array]  # positions [B, N] -> vectors [B, N, H]

    def at(self, positions_BxP: jax.Array) -> jax.Array:
        """Returns the hidden states [B, P, H] at the given positions of each row."""
        return jnp.take_along_axis(self.hidden, positions_BxP[..., None], axis=1)


@dataclasses.dataclass(frozen=True)
class Objective:
    """An entry of `registry.OBJECTIVES`; each has its own file in this folder.

    The loss of an objective is `sums["loss"]` over the global batch, divided by `denominator` of
    the sum of its weights.
    """

    name: str  # in config.objectives and as prefix of its metrics: "mlm/loss"
    title: str  # in tables and plots
    head: str  # key of its parameters in the model
    weights: str  # batch array with the weight of each prediction, 0 or 1
    has_labels: Callable[[DataConfig], bool]  # whether batches of this data have its labels
    make_head: Callable[[ModelConfig, Keys], nnx.Module]
    logits: Callable[[Any, States, Batch], jax.Array]  # (head, states, batch) -> float32
    # (logits, batch, corpus) -> "loss" (nats), "correct", "count", and sums for `baselines`
    sums: Callable[[jax.Array, Batch, Corpus], dict[str, jax.Array]]
    # (sums, source names) -> metrics of trivial predictions: "baseline_loss", …
    baselines: Callable[[Mapping[str, Any], Sequence[str]], dict[str, float]]
    flops: Callable[[ModelConfig, PhaseConfig], float]  # FLOPs of the head in a step's forward pass
    denominator: Callable[[jax.Array], jax.Array] = lambda count: jnp.maximum(count, 1)
    needs_pooler: bool = False
    tensors: tuple[Tensor, ...] = ()  # of its head, for export; () if transformers has no such head
    task: str = ""  # what it predicts, a clause for pages and model cards
    head_title: str = ""  # in a model card; "" if the head is not exported
    card: str = ""  # a sentence for the model card
