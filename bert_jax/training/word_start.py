"""A start of words and output biases that is counted in the training text of a store.

`config.model.word_initializer = "cooccurrence"`: the row of each entry is its vector of
`data_pipeline/analysis/word_vectors.py`, as long as the random rows are. Special tokens, and
entries seen fewer than three times, keep random values.
`config.model.output_bias_initializer = "frequencies"`: log (n + 1) of the n occurrences of each
entry, less the mean over all entries, so that the first prediction is nearly the unigram one.

Process 0 computes both before the first step and writes them to word_start.npz in the workdir,
which all processes read; a run that is started again before its first checkpoint reads them, too.
"""

import dataclasses
import io
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.checkpoint.fingerprint import path_of
from bert_jax.config.schema import Config, ModelConfig
from bert_jax.data_pipeline.analysis.cooccurrence import count_cooccurrences
from bert_jax.data_pipeline.analysis.word_vectors import RAREST, spectral_vectors
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.store_build.workers import available_cores
from bert_jax.distributed.peers import ProcessGroup
from bert_jax.errors import StorageError
from bert_jax.model.positional_heads import TRUNCATED
from bert_jax.objectives.known_objectives import learned_by
from bert_jax.objectives.pretraining_model import vocabulary_paths
from bert_jax.runtime.console import elapsed
from bert_jax.runtime.log import logger
from bert_jax.storage.digest import json_digest, sha256
from bert_jax.storage.npz_file import read_npz
from bert_jax.storage.remote import put, storage_errors
from bert_jax.training.state_sharding import State
from bert_jax.workdir.layout import Workdir

MOST_TOKENS: Final = 300_000_000  # of a larger store, evenly spread documents are counted
WORDS, BIAS = "words", "bias"  # names of the arrays
_TABLE: Final = ("encoder", "embeddings", "word")
Arrays = Mapping[str, np.ndarray]
Rows = tuple[np.ndarray, np.ndarray]  # values, and which of them are taken


def is_counted(model: ModelConfig) -> bool:
    """Returns whether a model starts from counts of its store."""
    return (model.word_initializer, model.output_bias_initializer) != ("random", "zeros")


def start_words(
    state: State, config: Config, store: TokenStore, workdir: Workdir, peers: ProcessGroup
) -> State:
    """Returns the state of a new run with what `config.model` starts from counts.

    All processes of the job call it; errors as `shared_arrays`.
    """
    model = config.model

    def count() -> tuple[Arrays, str]:
        arrays = count_words(model, store)
        return arrays, _line(model, store, arrays)

    about = {"words": model.word_initializer, "bias": model.output_bias_initializer}
    key = key_of(model, store, about)
    return _with(state, shared_arrays(key, count, store, workdir, peers), config)


def shared_arrays(
    key: str,
    compute: Callable[[], tuple[Arrays, str]],
    store: TokenStore,
    workdir: Workdir,
    peers: ProcessGroup,
) -> Arrays:
    """Returns what process 0 computes from the store and writes to word_start.npz, unless the file
    has it already. All processes of the job call it.

    Args:
        key: of all that the arrays depend on, see `key_of`.
        compute: returns the arrays and a line for the log.

    Raises:
        UserError: the file in the workdir cannot be written, or read by another process.
        StorageError: another process reads another file than process 0 wrote.
    """
    digest = ""
    if peers.is_first:
        found = _stored(workdir, key)
        arrays = _computed(compute, store, workdir, key) if found is None else found
        digest = _digest(arrays)
    expected = peers.all_gather_text("word_start", digest)[0]
    if not peers.is_first:
        found = _stored(workdir, key)
        arrays = {} if found is None else found
        if _digest(arrays) != expected:
            raise StorageError(
                f"{workdir.word_start}: not the file that {peers.name(0)} has there; the workdir "
                "must be the same folder for all processes"
            )
    return arrays


def count_words(model: ModelConfig, store: TokenStore) -> Arrays:
    """Returns what the words of a model start from: "words", float32 [V, H], rows of length 1, or
    zeros for those that stay random, and "bias", float32 [V]; each only if the model takes it."""
    arrays = dict[str, np.ndarray]()
    if model.word_initializer == "cooccurrence" and store.vocab_size >= model.hidden_size:
        arrays[WORDS] = word_vectors(model, store)
    if model.output_bias_initializer == "frequencies":
        logs = np.log(store.train.token_counts + 1.0)
        arrays[BIAS] = (logs - logs.mean()).astype(np.float32)
    return arrays


def word_vectors(model: ModelConfig, store: TokenStore) -> np.ndarray:
    """Returns the vectors of the entries of a store, which are at least as many as the width:
    float32 [V, H], rows of length 1; zeros for special tokens and rare entries."""
    about = model.cooccurrence
    with ThreadPoolExecutor(available_cores()) as pool:
        found = count_cooccurrences(store.train, store.vocab_size, about.window, pool, MOST_TOKENS)
        words = spectral_vectors(found, model.hidden_size, about.smoothing, about.exponent, pool)
    words[list(store.special)] = 0
    return words


def _computed(
    compute: Callable[[], tuple[Arrays, str]], store: TokenStore, workdir: Workdir, key: str
) -> Arrays:
    """Computes arrays, writes them to the workdir, and logs what they are."""
    began = time.perf_counter()
    with elapsed("counting words"):
        arrays, line = compute()
    store.files.check()
    data = io.BytesIO()
    np.savez(data, allow_pickle=False, **arrays, key=np.array(key))
    with storage_errors(workdir.word_start, "cannot be written"):
        put(workdir.word_start, data.getvalue())
    logger.info(f"{line} ({time.perf_counter() - began:.1f} s)")
    return arrays


def _line(model: ModelConfig, store: TokenStore, arrays: Arrays) -> str:
    """Returns what starts from counts, and what stays random, for the log."""
    parts = []
    if WORDS in arrays:
        known, tokens = int(arrays[WORDS].any(axis=1).sum()), len(store.train.tokens)
        sample = f" in about {MOST_TOKENS:,} of {tokens:,} tokens" if tokens > MOST_TOKENS else ""
        parts.append(
            f"words: {known:,} of {store.vocab_size:,} entries start from their co-occurrences"
            f"{sample}, the others (special, or seen fewer than {RAREST} times) from random values"
        )
    elif model.word_initializer == "cooccurrence":
        parts.append(
            f"words start from random values: {store.vocab_size:,} entries have no vectors of "
            f"{model.hidden_size:,} dimensions"
        )
    if BIAS in arrays:
        parts.append("output bias: log frequencies")
    return "; ".join(parts)


def _stored(workdir: Workdir, key: str) -> Arrays | None:
    """Returns the arrays in the workdir; None if there are none of this store and these settings,
    or the file is damaged."""
    with storage_errors(workdir.word_start):
        try:
            arrays = read_npz(workdir.word_start)
        except FileNotFoundError:
            return None
        except ValueError as error:
            logger.warning(f"{workdir.word_start}: damaged ({error}); counting again")
            return None
    return arrays if str(arrays.pop("key", "")) == key else None


def key_of(model: ModelConfig, store: TokenStore, about: Mapping[str, object]) -> str:
    """Returns a digest of all that arrays depend on: `about`, and what every start depends on."""
    shared: dict[str, object] = {
        "version": 1,
        "store": store.train.digest,
        "vocab_size": store.vocab_size,
        "special": [*store.special],
        "cooccurrence": dataclasses.asdict(model.cooccurrence),
        "hidden_size": model.hidden_size,
    }
    return json_digest({**shared, **about})


def _digest(arrays: Arrays) -> str:
    return json_digest({name: sha256(array.tobytes()) for name, array in arrays.items()})


def _with(state: State, arrays: Arrays, config: Config) -> State:
    """Returns the state with the arrays in the place of random values."""
    model, given = config.model, dict[str, Rows]()
    table, *biases = entry_paths(config)
    if WORDS in arrays:
        # The length that a random row has on average.
        length = TRUNCATED * model.initializer_range * model.hidden_size**0.5
        words = np.float32(length) * arrays[WORDS]
        given[table] = words, np.any(words, axis=1)
    if BIAS in arrays:
        given |= dict.fromkeys(biases, (arrays[BIAS], np.ones(len(arrays[BIAS]), bool)))
    return with_rows(state, given)


def entry_paths(config: Config) -> list[str]:
    """Returns the parameters that have a row for each entry: the table of words, then biases."""
    paths = vocabulary_paths(config.model, learned_by(config)) - {_TABLE}
    return ["/".join(("params", *path)) for path in (_TABLE, *sorted(paths))]


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

    def shard(array: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: array[index])

    choose = jax.jit(jnp.where, out_shardings=leaf.sharding)
    return choose(shard(mask), shard(rows), leaf)
