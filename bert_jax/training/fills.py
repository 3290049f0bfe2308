"""Words hidden in a few held-out sentences, guessed at the start and at each evaluation of a run.

The sentences depend on the store alone: runs of one store have the same, and so has a resumed run.
All processes compute the guesses, as the parameters are on the devices of all; process 0 writes.

Sizes: N sentences, S positions, V padded vocabulary, k guesses.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.config.schema import Config, ModelConfig
from bert_jax.data_pipeline.analysis.hidden_words import MaskedSentence, guess_text, mask_words
from bert_jax.data_pipeline.assemble import BatchArrays
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.metrics.fill_records import Guesses
from bert_jax.objectives.known_objectives import learned_by
from bert_jax.objectives.pretraining_model import declare
from bert_jax.parallel import global_batch, partition
from bert_jax.parallel.global_batch import Batch
from bert_jax.training.gradients import cast_matrices
from bert_jax.training.state_sharding import param_specs

_SHORTEST, _LONGEST = 8, 32  # tokens of a sentence: enough to guess from, and a line of a page
_GUESSES = 3  # for each


class HeldOutFills:
    """Held-out sentences with a hidden word; a function of the parameters guesses it.

    Attributes:
        sentences: as they were drawn; fewer than asked for if the held-out text has no more.
    """

    def __init__(self, config: Config, store: TokenStore):
        """Draws `config.evaluation.fills` sentences that fit a row of the first phase."""
        longest = min(_LONGEST, config.phases[0].seq_length - 2)  # [CLS] and [SEP]
        count = config.evaluation.fills
        self.sentences = mask_words(
            store, seed=0, count=count, shortest=min(_SHORTEST, longest), longest=longest
        )
        self._tokenizer = Tokenizer.load(store.tokenizer_path)
        self._rows = _rows(self.sentences, self._tokenizer)
        self._compiled: tuple[ModelConfig, jax.stages.Compiled] | None = None

    def compile(self, config: Config, mesh: Mesh, params: Any) -> Callable[[Any], Guesses]:
        """Returns the function parameters -> guesses, compiled: once for phases of one model.

        All processes of a job call what it returns.

        Args:
            config: with the model of the phase.
            params: as ShapeDtypeStructs with shardings.
        """
        replicated = NamedSharding(mesh, P())
        if self._compiled is None or self._compiled[0] != config.model:
            batch = {
                name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated)
                for name, x in self._rows.items()
            }
            step = jax.jit(_make_fill_step(config, mesh), out_shardings=replicated)
            self._compiled = config.model, step.lower(params, batch).compile()
        return functools.partial(self._fill, self._compiled[1], replicated)

    def _fill(self, step: jax.stages.Compiled, replicated: NamedSharding, params: Any) -> Guesses:
        count = len(self.sentences)
        batch = global_batch.global_batch(lambda rows: self._rows, replicated, count)
        found = zip(*map(global_batch.local_values, step(params, batch)), strict=True)
        return [
            [
                (guess_text(self._tokenizer, entry), round(probability, 4))
                for probability, entry in zip(values.tolist(), ids.tolist(), strict=True)
            ]
            for values, ids in found
        ]


def _make_fill_step(config: Config, mesh: Mesh) -> Callable[[Any, Batch], tuple]:
    """Returns the function (params, batch) -> the probabilities and ids [N, k] of the most probable
    entries for the only prediction slot of each row, to be jitted."""
    learned = learned_by(config)
    # Kernels read rows of certain lengths, sharded over the devices; these are few and short.
    compute = dataclasses.replace(config.compute, attention="xla")
    graph, declared = declare(config.model, compute, learned)
    axes, shapes = partition.param_axes(declared), nnx.to_pure_dict(declared)
    gathered = partition.on_mesh(mesh, param_specs(config, mesh, axes, shapes).compute)

    def fill_step(params: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        cast = cast_matrices(params, compute.dtype)
        model = nnx.merge(graph, jax.lax.with_sharding_constraint(cast, gathered))
        logits_NxV = model.masked_words(batch)[:, 0, : config.model.vocab_size]
        return jax.lax.top_k(jax.nn.softmax(logits_NxV), _GUESSES)

    return fill_step


def _rows(sentences: list[MaskedSentence], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Returns one row for each sentence, [N, S], with one prediction slot."""
    special = tokenizer.special
    length = max(len(sentence.ids) for sentence in sentences) + 2
    rows = BatchArrays.empty(len(sentences), length, 1, pairs=0, spans=0, draws=0).by_name()
    for array in rows.values():
        array[...] = 0
    rows["input_ids"][...] = special.pad
    for row, sentence in enumerate(sentences):
        own = slice(len(sentence.ids) + 2)
        rows["input_ids"][row, own] = [special.cls, *sentence.ids, special.sep]
        rows["example_ids"][row, own] = 1
        rows["position_ids"][row, own] = np.arange(len(sentence.ids) + 2)
        rows["masked_positions"][row] = 1 + sentence.place
        rows["masked_weights"][row] = 1.0
    return rows
