"""The encoder with the heads of chosen objectives."""

from collections.abc import Collection, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.config.task_model import probe_of
from bert_jax.model.encoder import Embeddings, Encoder
from bert_jax.model.layer_states import joined_states, pool
from bert_jax.model.layers import Dense, Keys
from bert_jax.objectives.known_objectives import OBJECTIVES, find
from bert_jax.objectives.objective import States
from bert_jax.ops.dropout import dropout
from bert_jax.ops.hashing import fold_key
from bert_jax.parallel.global_batch import Batch

TEACHER_PROJECTION: Final = "teacher_projection"  # the name of its parameters


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
        embeddings: Embeddings | None = None,
    ):
        """
        Args:
            pooler: whether there is one that no objective needs.
            embeddings: those of another model, which both share.
        """
        self.objectives, learned = tuple(objectives), find(objectives)
        pooler = pooler or any(objective.needs_pooler(config) for objective in learned)
        self.encoder = Encoder(config, compute, keys, pooler=pooler, embeddings=embeddings)
        for objective in learned:
            setattr(self, objective.head, objective.make_head(config, keys))
        if config.teacher_width:
            H, T = config.hidden_size, config.teacher_width
            self.teacher_projection = Dense(config, keys, (H,), (T,), ("embed", "pooled"))

    def __call__(self, batch: Batch, key: jax.Array | None = None) -> dict[str, Any]:
        """Returns float32 logits of each objective; `key`: uint32 dropout key of this step, None in
        evaluation.
        """
        return self.logits(self.encoded(batch, key), batch, key)

    def encoded(self, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        """Returns the encoder's output [B, S, H], or the joined states of a frozen encoder's
        layers; key: as in a call.

        The arrays of tokens may be [B, T, S]: rows of T strips, which the encoder reads as B·T rows
        of its own, and heads as one of T·S positions.

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
    ) -> dict[str, Any]:
        """Returns float32 logits of each objective from what `encoded` returned.

        key: as in a call. without: objectives that are left out.
        """

        def of_texts(positions_BxN: jax.Array, pools: Sequence[str]) -> jax.Array:
            read = encoder_rows(batch)
            examples, places = (
                _whole_rows(read[x], batch) for x in ("example_ids", "position_ids")
            )
            return pool(x_BxSxH, examples, positions_BxN, places, pools)

        def pooled(positions_BxN: jax.Array) -> jax.Array:
            if probe := probe_of(self.encoder.config):
                return of_texts(positions_BxN, probe.pools)
            return self.encoder.pooled(x_BxSxH, positions_BxN)

        def dropped(x: jax.Array, rate: float, place: int) -> jax.Array:
            # The encoder has the keys of its layers, from 1, and of the embeddings, 0.
            own = None if key is None else fold_key(key, self.encoder.num_layers + 1 + place)
            return dropout(x, rate=rate, key=own)

        states = States(x_BxSxH, self.encoder.embeddings.word[...], pooled, of_texts, dropped)
        logits: dict[str, Any] = {}
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
    """Returns an array [R, S, …] of the encoder's rows as one of the batch's, [B, T·S, …]."""
    return x.reshape(len(batch["example_ids"]), -1, *x.shape[2:])
