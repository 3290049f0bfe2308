"""Arrays that process 0 computes before the first step, and that all processes read from a file."""

import io
import time
from collections.abc import Callable, Mapping

import numpy as np

from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.distributed.peers import ProcessGroup
from bert_jax.errors import StorageError
from bert_jax.runtime.console import elapsed
from bert_jax.runtime.log import logger
from bert_jax.storage.digest import json_digest, sha256
from bert_jax.storage.npz_file import read_npz
from bert_jax.storage.remote import put, storage_errors
from bert_jax.workdir.layout import Workdir

Arrays = Mapping[str, np.ndarray]


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


def _digest(arrays: Arrays) -> str:
    return json_digest({name: sha256(array.tobytes()) for name, array in arrays.items()})
