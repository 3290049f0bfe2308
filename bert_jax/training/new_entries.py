"""New entries of a run's vocabulary that start from counts: `config.init_entries=cooccurrence`.

The vectors of `word_start.py` are turned so that those of the entries that the model has come near
their rows in its table, and the new entries take what theirs become:

    x, y    vector and row of an entry that the model has and the store's text has often enough,
            less their means, weighted by the root of its count
    R       the orthogonal matrix with the largest sum of x R · y (Schönemann 1966, "A Generalized
            Solution of the Orthogonal Procrustes Problem")
    row     the mean row + (x R / |x|) times the mean length of y

The output bias of a new entry is on the line of least squares through log (n + 1) and the biases
of these entries. Entries seen fewer than three times keep the mean of their pieces. The file
and who reads it are those of `shared_arrays.py`.
"""

from typing import Final

import numpy as np
import threadpoolctl

from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.distributed.peers import ProcessGroup
from bert_jax.storage.digest import sha256
from bert_jax.training.initial import InitialModel
from bert_jax.training.shared_arrays import Arrays, shared_arrays
from bert_jax.training.state_sharding import State
from bert_jax.training.word_start import (
    entry_paths,
    key_of,
    training_text,
    with_rows,
    word_vectors,
)
from bert_jax.workdir.layout import Workdir

TAKEN: Final = "taken"  # name of an array


def start_entries(
    state: State,
    config: Config,
    initial: InitialModel,
    store: TokenStore,
    workdir: Workdir,
    peers: ProcessGroup,
) -> State:
    """Returns the state of a new run with its new entries from counts of the store.

    All processes of the job call it; errors as `shared_arrays`.
    """
    found = initial.read()
    copied = found.copied
    if copied is None or copied.all():
        return state
    own = {path: found.leaves[path] for path in entry_paths(config) if path in found.leaves}

    def compute() -> tuple[Arrays, str]:
        vectors = np.zeros((store.vocab_size, 1), np.float32)
        if store.vocab_size >= config.model.table_width:
            vectors = word_vectors(config.model, store, training_text(store))
        found = aligned(vectors, store.train.token_counts, copied, own)
        store.files.check()
        return found

    about = {"entries": [initial.digest, sha256(copied.tobytes())]}
    key = key_of(config.model, store, about)
    arrays = shared_arrays(workdir.word_start, key, compute, peers)
    return with_rows(state, {path: (arrays[path], arrays[TAKEN]) for path in own if arrays})


def aligned(
    vectors: np.ndarray, counts: np.ndarray, copied: np.ndarray, own: Arrays
) -> tuple[Arrays, str]:
    """Returns what new entries start with, and a line for the log.

    Args:
        vectors: of all entries, [V, H]; zeros for those that have none.
        counts: of all entries in the store's text, [V].
        copied: the entries that the model has, bool [V].
        own: name -> the rows of all entries, the table [V, H] first, then biases [V].

    Returns:
        `TAKEN`, bool [V]: the new entries that have vectors; and arrays like `own`. None of them if
        fewer entries than H are copied and have vectors.
    """
    has, logs = vectors.any(axis=1), np.log(counts + 1.0)
    both, taken = np.flatnonzero(has & copied), has & ~copied
    table = next(iter(own.values()))
    if len(both) < table.shape[1]:
        return {}, (
            f"new entries keep the mean of their pieces: {len(both):,} entries that the model has "
            f"have counts, fewer than the width {table.shape[1]:,}"
        )
    weights = np.sqrt(counts[both])
    weights /= weights.sum()
    result = {name: np.array(rows) for name, rows in own.items()}
    with threadpoolctl.threadpool_limits(1):
        center, mean = weights @ vectors[both], weights @ table[both]
        x, y = vectors[both] - center, table[both] - mean
        left, _, right = np.linalg.svd(x.T @ (weights[:, None] * y))
        x = vectors[taken] - center
        x *= (weights @ np.linalg.norm(y, axis=1)) / np.linalg.norm(x, axis=1, keepdims=True)
        for rows in result.values():
            if rows.ndim == 2:
                rows[taken] = mean + x @ left @ right
            else:
                slope, at_zero = np.polyfit(logs[both], rows[both], 1, w=np.sqrt(weights))
                rows[taken] = slope * logs[taken] + at_zero
    return result | {TAKEN: taken}, (
        f"new entries: {taken.sum():,} of {(~copied).sum():,} start from their co-occurrences, "
        f"turned to the rows of {len(both):,} copied ones; the others keep the mean of their pieces"
    )
