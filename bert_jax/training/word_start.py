"""A start of words and output biases that is counted in the training text of a store.

`config.model.word_initializer = "cooccurrence"`: the row of each entry is its vector of
`data_pipeline/analysis/word_vectors.py`, as long as the random rows are. Special tokens, and
entries seen fewer than three times, keep random values.
`config.model.output_bias_initializer = "frequencies"`: log (n + 1) of the n occurrences of each
entry, less the mean over all entries, so that the first prediction is nearly the unigram one.
`config.model.positional_heads.pmi > 0`: values and outputs of the heads of the first layer are the
maps of data_pipeline/analysis/neighbor_maps.py at the offset to which each head attends.

Process 0 computes all before the first step and writes them to word_start.npz in the workdir,
which all processes read; a run that is started again before its first checkpoint reads them, too.
"""

import dataclasses
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import threadpoolctl

from bert_jax.checkpoint.fingerprint import path_of
from bert_jax.config.schema import Config, ModelConfig
from bert_jax.data_pipeline.analysis.cooccurrence import (
    Text,
    count_cooccurrences,
    text_of,
    window_weights,
)
from bert_jax.data_pipeline.analysis.neighbor_maps import neighbor_maps
from bert_jax.data_pipeline.analysis.word_vectors import RAREST, spectral_vectors
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.store_build.workers import available_cores
from bert_jax.distributed.peers import ProcessGroup
from bert_jax.model.positional_heads import TRUNCATED, position_table
from bert_jax.objectives.disentangled_embeddings import GENERATOR
from bert_jax.objectives.known_objectives import learned_by
from bert_jax.objectives.pretraining_model import vocabulary_paths
from bert_jax.parallel.partition import place
from bert_jax.storage.digest import json_digest
from bert_jax.training.shared_arrays import Arrays, shared_arrays
from bert_jax.training.state_sharding import State
from bert_jax.workdir.layout import Workdir

MOST_TOKENS: Final = 300_000_000  # of a larger store, evenly spread documents are counted
WORDS, BIAS, VALUES, OUTPUTS = "words", "bias", "values", "outputs"  # names of the arrays
_TABLE: Final = ("embeddings", "word")  # the end of its path
_ATTENTION: Final = "params/encoder/layers/attention"
Rows = tuple[np.ndarray, np.ndarray]  # values, and which of them are taken


def is_counted(model: ModelConfig) -> bool:
    """Returns whether a model starts from counts of its store."""
    counted = (model.word_initializer, model.output_bias_initializer) != ("random", "zeros")
    return counted or has_neighbor_maps(model)


def has_neighbor_maps(model: ModelConfig) -> bool:
    return model.initializer == "positional_heads" and model.positional_heads.pmi > 0


def start_words(
    state: State, config: Config, store: TokenStore, workdir: Workdir, peers: ProcessGroup
) -> State:
    """Returns the state of a new run with what `config.model` starts from counts.

    All processes of the job call it; errors as `shared_arrays`.
    """
    return _with(state, counted_arrays(config, store, workdir, peers), config)


def counted_arrays(
    config: Config, store: TokenStore, workdir: Workdir, peers: ProcessGroup
) -> Arrays:
    """Returns what `count_words` does, which the workdir has if it was counted before.

    All processes of the job call it; errors as `shared_arrays`.
    """
    model = config.model

    def count() -> tuple[Arrays, str]:
        arrays = count_words(model, store)
        store.files.check()
        return arrays, _line(model, store, arrays)

    about: dict[str, object] = {
        "words": model.word_initializer,
        "bias": model.output_bias_initializer,
    }
    if has_neighbor_maps(model):
        about["heads"] = [
            [dataclasses.asdict(model.positional_heads), model.initializer_range],
            [model.num_attention_heads, model.max_position_embeddings],
        ]
    return shared_arrays(workdir.word_start, key_of(model, store, about), count, peers)


def count_words(model: ModelConfig, store: TokenStore) -> Arrays:
    """Returns what a model starts from, each only if the model takes it: "words", float32 [V, H],
    rows of length 1, or zeros for those that stay random; "bias", float32 [V]; "values", float32
    [A, H, D], and "outputs", float32 [A, D, H], of the heads of the first layer."""
    arrays = dict[str, np.ndarray]()
    if model.word_initializer == "cooccurrence" and store.vocab_size >= model.table_width:
        text = training_text(store)
        words = word_vectors(model, store, text)
        if words.any():
            arrays[WORDS] = words
        if words.any() and has_neighbor_maps(model):
            arrays[VALUES], arrays[OUTPUTS] = head_maps(model, text, words)
    if model.output_bias_initializer == "frequencies":
        logs = np.log(store.train.token_counts + 1.0)
        arrays[BIAS] = (logs - logs.mean()).astype(np.float32)
    return arrays


def training_text(store: TokenStore) -> Text:
    """Returns the text of a store that is counted."""
    return text_of(store.train, store.vocab_size, MOST_TOKENS)


def word_vectors(model: ModelConfig, store: TokenStore, text: Text) -> np.ndarray:
    """Returns the vectors of the entries of a store, which are at least as many as the width:
    float32 [V, H], rows of length 1; zeros for special tokens and rare entries.

    text: of its training split.
    """
    about = model.cooccurrence
    with ThreadPoolExecutor(available_cores()) as pool:
        found = count_cooccurrences(text, window_weights(about.window), pool)
        words = spectral_vectors(found, model.table_width, about.smoothing, about.exponent, pool)
    words[list(store.special)] = 0
    return words


def head_maps(model: ModelConfig, text: Text, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns values and outputs of the heads of the first layer, from words of these directions.

    The input of the layer is the sum of the embeddings of words, positions and types, normalized.
    """
    words, table = _row_length(model) * vectors, position_table(model)
    with threadpoolctl.threadpool_limits(1):  # the same bits on any number of cores
        spread = np.cov(table.T, bias=True)
    with ThreadPoolExecutor(available_cores()) as pool:
        values, outputs = neighbor_maps(
            text,
            words,
            spread,
            model.head_offsets,
            model.head_dim,
            model.cooccurrence.smoothing,
            pool,
        )
    variance = np.mean(words[words.any(axis=1)] ** 2) + np.mean(table**2)
    variance += (TRUNCATED * model.initializer_range) ** 2  # of types
    root = np.float32((model.positional_heads.pmi * variance**0.5) ** 0.5)
    return root * values, root * outputs


def _row_length(model: ModelConfig) -> np.float32:
    """Returns the length that a random row of the table of words has on average."""
    return np.float32(TRUNCATED * model.initializer_range * model.table_width**0.5)


def _line(model: ModelConfig, store: TokenStore, arrays: Arrays) -> str:
    """Returns what starts from counts, and what stays random, for the log."""
    parts, tokens = [], len(store.train.tokens)
    sample = f" in {MOST_TOKENS:,} of {tokens:,} tokens" if tokens > MOST_TOKENS else ""
    if WORDS in arrays:
        known = int(arrays[WORDS].any(axis=1).sum())
        parts.append(
            f"words: {known:,} of {store.vocab_size:,} entries start from their co-occurrences"
            f"{sample}, the others (special, or seen fewer than {RAREST} times) from random values"
        )
    elif model.word_initializer == "cooccurrence":
        why = f"no entry is seen {RAREST} times or more{sample}"
        if store.vocab_size < model.table_width:
            why = (
                f"{store.vocab_size:,} entries have no vectors of {model.table_width:,} dimensions"
            )
        heads = " and heads" if has_neighbor_maps(model) else ""
        parts.append(f"words{heads} start from random values: {why}")
    if VALUES in arrays:
        parts.append("heads of the first layer: PMI at their offsets")
    if BIAS in arrays:
        parts.append("output bias: log frequencies")
    return "; ".join(parts)


def key_of(model: ModelConfig, store: TokenStore, about: Mapping[str, object]) -> str:
    """Returns a digest of all that arrays depend on: `about`, and what every start depends on."""
    shared: dict[str, object] = {
        "version": 1,
        "store": store.train.digest,
        "vocab_size": store.vocab_size,
        "special": [*store.special],
        "cooccurrence": dataclasses.asdict(model.cooccurrence),
        "hidden_size": model.table_width,
    }
    return json_digest({**shared, **about})


def _with(state: State, arrays: Arrays, config: Config) -> State:
    """Returns the state with the arrays in the place of random values."""
    model, given = config.model, dict[str, Rows]()
    table, *biases = entry_paths(config)
    if WORDS in arrays:
        words = _row_length(model) * arrays[WORDS]
        given[table] = words, np.any(words, axis=1)
    if BIAS in arrays:
        given |= dict.fromkeys(biases, (arrays[BIAS], np.ones(len(arrays[BIAS]), bool)))
    state = with_rows(state, given)
    return _with_maps(state, arrays[VALUES], arrays[OUTPUTS]) if VALUES in arrays else state


def _with_maps(state: State, values: np.ndarray, outputs: np.ndarray) -> State:
    """Returns the state with values and outputs of the heads of the first layer."""

    def replaced(path: tuple, leaf: jax.Array) -> jax.Array:
        match path_of(path).removeprefix(_ATTENTION):
            case "/qkv/kernel":  # [L, H, 3, A, D]
                return _set(leaf, np.s_[0, :, 2], values.swapaxes(0, 1))
            case "/output/kernel":  # [L, A, D, H]
                return _set(leaf, np.s_[0], outputs)
        return leaf

    return jax.tree_util.tree_map_with_path(replaced, state)


def _set(leaf: jax.Array, place: Any, part: np.ndarray) -> jax.Array:
    """Returns a leaf with another part, sharded as before."""
    return jax.jit(lambda whole: whole.at[place].set(part), out_shardings=leaf.sharding)(leaf)


def entry_paths(config: Config) -> list[str]:
    """Returns the parameters that have a row for each entry: the table of words, then biases.

    Of two tables that is the generator's; a discriminator's own starts at zero.
    """
    paths = vocabulary_paths(config.model, learned_by(config))
    tables = {path for path in paths if path[-2:] == _TABLE}
    table = max(tables, key=lambda path: path[0] == GENERATOR)
    return ["/".join(("params", *path)) for path in (table, *sorted(paths - tables))]


def with_rows(state: State, given: Mapping[str, Rows]) -> State:
    """Returns the state with other rows.

    given: path in the state -> values [V, …], and which of them are taken, bool [V].
    """

    def replaced(path: tuple, leaf: jax.Array) -> jax.Array:
        rows = given.get(path_of(path))
        return _replaced(leaf, *rows) if rows else leaf

    return jax.tree_util.tree_map_with_path(replaced, state)


def _replaced(leaf: jax.Array, given: np.ndarray, taken: np.ndarray) -> jax.Array:
    """Returns a leaf with the given rows where they are taken, sharded as before."""
    rows, mask = np.zeros(leaf.shape, leaf.dtype), np.zeros(leaf.shape, bool)
    rows[: len(given)] = given
    mask[np.flatnonzero(taken)] = True
    choose = jax.jit(jnp.where, out_shardings=leaf.sharding)
    return choose(place(mask, leaf.sharding), place(rows, leaf.sharding), leaf)
