"""The pretraining model: the encoder with the heads of the chosen objectives."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.config.task_model import probe_of
from bert_jax.model.encoder import Encoder
from bert_jax.model.layer_states import joined_states, pool
from bert_jax.model.layers import Keys
from bert_jax.model.positional_heads import guide
from bert_jax.objectives.objective import States
from bert_jax.objectives.registry import OBJECTIVES, find
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

    def __call__(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
        """Returns float32 logits of each objective; `key`: uint32 dropout key of this step, None in
        evaluation.

        `reading_ids`, if in the batch: int32 [B, S], the example whose tokens each position attends
        to, so that padding may read one, too.
        """
        examples_BxS = batch["example_ids"]
        if "reading_ids" in batch:
            examples_BxS = jnp.stack([batch["reading_ids"], examples_BxS], axis=1)
        inputs = (
            batch["input_ids"],
            batch["token_type_ids"],
            examples_BxS,
            batch["position_ids"],
        )
        if probe := probe_of(self.encoder.config):
            x_BxSxD = joined_states(self.encoder, inputs, probe.layers, probe.join)
            return self.logits(jax.lax.stop_gradient(x_BxSxD), batch, key)
        return self.logits(self.encoder(*inputs, key), batch, key)

    def logits(
        self, x_BxSxH: jax.Array, batch: Batch, key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """Returns float32 logits of each objective from the encoder's output, or from the joined
        states of a frozen encoder's layers; key: as in a call."""

        def pooled(positions_BxN: jax.Array) -> jax.Array:
            if probe := probe_of(self.encoder.config):
                return pool(x_BxSxH, batch["example_ids"], positions_BxN, probe.pooling)
            return self.encoder.pooled(x_BxSxH, positions_BxN)

        def dropped(x: jax.Array, rate: float, place: int) -> jax.Array:
            # The encoder has the keys of its layers, from 1, and of the embeddings, 0.
            own = None if key is None else fold_key(key, self.encoder.num_layers + 1 + place)
            return dropout(x, rate=rate, key=own)

        states = States(x_BxSxH, self.encoder.embeddings.word[...], pooled, dropped)
        logits = {}
        for name in self.objectives:
            objective = OBJECTIVES[name]
            logits[name] = objective.logits(getattr(self, objective.head), states, batch)
        return logits


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
