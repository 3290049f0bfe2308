"""The interface of an objective: names, head, loss and cost."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.config.schema import DataConfig, ModelConfig, PhaseConfig
from bert_jax.model.layers import Keys
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.soft_labels import SoftLoss
from bert_jax.parallel.global_batch import Batch


class Tensor(NamedTuple):
    """A parameter and its counterpart in the state dict of BERT models in transformers."""

    ours: str  # path, such as "mlm.dense.kernel"
    theirs: str  # `{layer}` is the layer; `{part}` is query, key or value
    inputs: int | None = None  # number of input dimensions of a kernel; None if not transposed
    of_vocabulary: bool = False  # first dimension is the vocabulary, with padding rows
    exists: Callable[[Any], bool] = lambda config: True  # whether a model of a `ModelConfig` has it


def has_bias(config: ModelConfig) -> bool:
    """Returns whether dense layers have a bias."""
    return config.linear_bias


def has_norm_bias(config: ModelConfig) -> bool:
    """Returns whether LayerNorms have a bias."""
    return config.norm_bias


def transform_tensors(head: str, theirs: str = "classifier") -> tuple[Tensor, ...]:
    """The layer before the output layer of a task's head, where the layout has one: its names are
    those of RoBERTa's classifier, unless another prefix tells it from that."""
    return (
        Tensor(
            f"{head}.dense.kernel",
            f"{theirs}.dense.weight",
            1,
            exists=lambda c: bool(c.head.dense),
        ),
        Tensor(
            f"{head}.dense.bias",
            f"{theirs}.dense.bias",
            exists=lambda c: bool(c.head.dense) and has_bias(c),
        ),
        Tensor(f"{head}.norm.scale", f"{theirs}.norm.weight", exists=lambda c: c.head.norm),
        Tensor(
            f"{head}.norm.bias",
            f"{theirs}.norm.bias",
            exists=lambda c: c.head.norm and has_norm_bias(c),
        ),
    )


@dataclasses.dataclass(frozen=True)
class States:
    """The encoder outputs that heads read."""

    hidden: jax.Array  # states [B, S, H] of the last layer
    table: jax.Array  # word embeddings [V, H]
    pooled: Callable[[jax.Array], jax.Array]  # positions [B, N] -> vectors [B, N, H]
    # positions [B, N], `HeadConfig.pools` -> vectors of their texts [B, N, H]
    of_texts: Callable[[jax.Array, Sequence[str]], jax.Array]
    # (x, rate, number of the place in the head) -> x with dropout, in training
    dropped: Callable[[jax.Array, float, int], jax.Array]

    def at(self, positions_BxP: jax.Array) -> jax.Array:
        """Returns the hidden states [B, P, H] at the given positions of each row."""
        return jnp.take_along_axis(self.hidden, positions_BxP[..., None], axis=1)


@dataclasses.dataclass(frozen=True)
class Objective:
    """An entry of `known_objectives.OBJECTIVES`; each has its own file in this folder.

    The loss of an objective is `sums["loss"]` over the global batch, divided by `denominator` of
    the sum of its weights.
    """

    name: str  # in config.objectives and as prefix of its metrics: "mlm/loss"
    title: str  # in tables and plots
    head: str  # key of its parameters in the model
    # The weight of each prediction, 0 or 1: the name of a batch array, or a function of the batch.
    weights: str | Callable[[Batch], jax.Array]
    make_head: Callable[[Any, Keys], nnx.Module]  # of a `ModelConfig`, as `flops`
    # (head, states, batch) -> float32 logits; of some objectives a tuple with them
    logits: Callable[[Any, States, Batch], Any]
    # (logits, batch, corpus) -> "loss" (nats), "count", "correct" if there are right answers, and
    # sums for `baselines`; of a batch, or of one row, whose arrays lack the dimension of rows
    sums: Callable[[Any, Batch, Corpus], dict[str, jax.Array]]
    # (sums, source names) -> metrics of trivial predictions: "baseline_loss", …
    baselines: Callable[[Mapping[str, Any], Sequence[str]], dict[str, float]]
    flops: Callable[[Any, PhaseConfig], float]  # FLOPs of the head in a step's forward pass
    tensors: tuple[Tensor, ...]  # of its head, for export
    head_title: str  # in a model card: "its masked-language-model head"
    # Whether batches of this data have its labels; no pretraining data has those of a task.
    has_labels: Callable[[DataConfig], bool] = lambda data: False
    of_task: bool = False  # learned in fine-tuning, by a model that has no other head
    # Of a task: how many logits its head has, if not one for each label; how many labels it needs.
    outputs: int | None = None
    labels: int | None = None
    # sums of each row [N, …] -> those of the trivial prediction that `baselines` takes from all of
    # them: "loss" and, if there are right answers, "correct", [N] each; {}: not known of each row
    baseline_rows: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]] = lambda rows: {}
    soft: SoftLoss | None = None  # of a task: the loss against what a teacher predicts
    denominator: Callable[[jax.Array], jax.Array] = lambda count: jnp.maximum(count, 1)
    # Whether, in a model of this `ModelConfig`, a loss compares what `logits` returns for all rows
    # of the global batch: then it is no sum over rows or micro-batches, and `sums` takes no row.
    across_rows: Callable[[Any], bool] = lambda config: False
    needs_pooler: Callable[[Any], bool] = lambda config: False  # in a model of this `ModelConfig`
    task: str = ""  # what it predicts, a clause for pages and model cards
    card: str = ""  # a sentence for the model card
    pipeline: str = ""  # of transformers, for a model whose class has the head
    # Lines of PyTorch that compute the logits, for a model whose class does not have the head: see
    # `publish/side_heads.py`.
    pytorch: str = ""

    def prediction_weights(self, batch: Batch) -> jax.Array:
        """Returns the weights of a batch, whose arrays may have any leading dimensions."""
        return batch[self.weights] if isinstance(self.weights, str) else self.weights(batch)
