"""The pretraining model: the encoder with the heads of the chosen objectives."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.config.task_model import probe_of
from bert_jax.config.task_settings import Pooling
from bert_jax.model.encoder import Encoder
from bert_jax.model.layer_states import joined_states, pool
from bert_jax.model.layers import Dense, Keys
from bert_jax.model.positional_heads import guide
from bert_jax.objectives.known_objectives import OBJECTIVES, find
from bert_jax.objectives.objective import States
from bert_jax.ops.dropout import dropout
from bert_jax.ops.hashing import fold_key
from bert_jax.parallel.global_batch import Batch
from bert_jax.parallel.partition import param_axes


class PretrainingModel(nnx.Module):
    """The encoder, a pooler if an objective needs one, and a head for each objective."""

    def __init__(
        self,
        config: ModelConfig,
        compute: ComputeConfig,
        objectives: Sequence[str],
        keys: Keys,
        *,
        pooler: bool = False,
    ):
        """pooler: whether there is one that no objective needs."""
        self.objectives, learned = tuple(objectives), find(objectives)
        pooler = pooler or any(objective.needs_pooler(config) for objective in learned)
        self.encoder = Encoder(config, compute, keys, pooler=pooler)
        for objective in learned:
            setattr(self, objective.head, objective.make_head(config, keys))
        if config.teacher_width:
            H, T = config.hidden_size, config.teacher_width
            self.to_teacher = Dense(config, keys, (H,), (T,), ("embed", "pooled"))

    def __call__(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
        """Returns float32 logits of each objective; `key`: uint32 dropout key of this step, None in
        evaluation.
        """
        return self.logits(self.encoded(batch, key), batch, key)

    def encoded(self, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        """Returns the encoder's output [B, S, H], or the joined states of a frozen encoder's
        layers; key: as in a call.

        The arrays of tokens may be [B, C, S]: rows of C strips, which the encoder reads as B·C rows
        of its own, and heads as one of C·S positions.

        `reading_ids`, if in the batch: int32 [B, S], the example whose tokens each position attends
        to, so that padding may read one, too.
        """
        read = encoder_rows(batch)
        examples_RxS = read["example_ids"]
        if "reading_ids" in batch:
            examples_RxS = jnp.stack([batch["reading_ids"], examples_RxS], axis=1)
        inputs = read["input_ids"], read["token_type_ids"], examples_RxS, read["position_ids"]
        if probe := probe_of(self.encoder.config):
            x_RxSxD = joined_states(self.encoder, inputs, probe.layers, probe.join)
            x_RxSxD = jax.lax.stop_gradient(x_RxSxD)
        else:
            x_RxSxD = self.encoder(*inputs, key)
        return _whole_rows(x_RxSxD, batch)

    def logits(
        self,
        x_BxSxH: jax.Array,
        batch: Batch,
        key: jax.Array | None = None,
        without: Collection[str] = (),
    ) -> dict[str, jax.Array]:
        """Returns float32 logits of each objective from what `encoded` returned.

        key: as in a call. without: objectives that are left out.
        """

        def of_texts(positions_BxN: jax.Array, pooling: Pooling) -> jax.Array:
            examples_BxS = _whole_rows(encoder_rows(batch)["example_ids"], batch)
            return pool(x_BxSxH, examples_BxS, positions_BxN, pooling)

        def pooled(positions_BxN: jax.Array) -> jax.Array:
            if probe := probe_of(self.encoder.config):
                return of_texts(positions_BxN, probe.pooling)
            return self.encoder.pooled(x_BxSxH, positions_BxN)

        def dropped(x: jax.Array, rate: float, place: int) -> jax.Array:
            # The encoder has the keys of its layers, from 1, and of the embeddings, 0.
            own = None if key is None else fold_key(key, self.encoder.num_layers + 1 + place)
            return dropout(x, rate=rate, key=own)

        states = States(x_BxSxH, self.encoder.embeddings.word[...], pooled, of_texts, dropped)
        logits = {}
        for name in self.objectives:
            if name in without:
                continue
            objective = OBJECTIVES[name]
            logits[name] = objective.logits(getattr(self, objective.head), states, batch)
        return logits


def encoder_rows(batch: Batch) -> Batch:
    """Returns the arrays of tokens that the encoder reads, [R, S], a strip in each row."""
    names = ("input_ids", "token_type_ids", "example_ids", "position_ids")
    return {name: batch[name].reshape(-1, batch[name].shape[-1]) for name in names}


def _whole_rows(x: jax.Array, batch: Batch) -> jax.Array:
    """Returns an array [R, S, …] of the encoder's rows as one of the batch's, [B, C·S, …]."""
    return x.reshape(len(batch["example_ids"]), -1, *x.shape[2:])


def declare(
    config: ModelConfig,
    compute: ComputeConfig,
    objectives: Sequence[str],
    *,
    pooler: bool = False,
) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the model's graph and abstract parameters with logical axes; allocates nothing.

    pooler: whether there is one that no objective needs.
    """

    def make() -> PretrainingModel:
        return PretrainingModel(config, compute, objectives, Keys(jax.random.key(0)), pooler=pooler)

    return nnx.split(nnx.eval_shape(make))


def parameter_count(config: ModelConfig, objectives: Sequence[str]) -> int:
    """Returns the number of trained values: without rows that only pad the vocabulary, or that the
    stack of the layers has for a LayerNorm that the first one lacks."""
    exact = dataclasses.replace(config, pad_vocab_to_multiple_of=1)
    state = declare(exact, ComputeConfig.plain(), objectives)[1]
    unused = 0 if config.first_attention_norm else config.hidden_size * (1 + config.norm_bias)
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.to_pure_dict(state))) - unused


def vocabulary_paths(config: ModelConfig, objectives: Sequence[str]) -> set[tuple[str, ...]]:
    """Returns the names of the parameters that have a row for each entry of the vocabulary."""
    axes = param_axes(declare(config, ComputeConfig.plain(), objectives)[1])
    leaves = jax.tree_util.tree_leaves_with_path(axes, is_leaf=lambda x: isinstance(x, tuple))
    return {tuple(key.key for key in path) for path, names in leaves if names[0] == "vocab"}


def init_params(
    config: ModelConfig, compute: ComputeConfig, objectives: Sequence[str], key: jax.Array
) -> dict:
    """Returns newly initialized parameters as a plain nested dict of float32 arrays."""
    model = PretrainingModel(config, compute, objectives, Keys(key))
    params = nnx.to_pure_dict(nnx.state(model))
    return guide(params, config) if config.initializer == "positional_heads" else params


def part_of(params: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters that `like` has: without heads, or a pooler, that are not used."""
    return {
        name: part_of(params[name], below) if isinstance(below, dict) else params[name]
        for name, below in like.items()
    }
