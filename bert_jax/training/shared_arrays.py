"""Arrays that process 0 computes before the first step, and that all processes read from a file."""

import time
from collections.abc import Callable, Mapping

import numpy as np
from etils import epath

from bert_jax.distributed.peers import ProcessGroup
from bert_jax.errors import StorageError
from bert_jax.runtime.console import elapsed
from bert_jax.runtime.log import logger
from bert_jax.storage.digest import json_digest, sha256
from bert_jax.storage.npz_file import npz_bytes, read_npz
from bert_jax.storage.remote import put, storage_errors

Arrays = Mapping[str, np.ndarray]


def shared_arrays(
    path: epath.Path,
    key: str,
    compute: Callable[[], tuple[Arrays, str]],
    peers: ProcessGroup,
    *,
    doing: str = "counting words",
) -> Arrays:
    """Returns what process 0 computes and writes to a file of the workdir, unless the file has it
    already. All processes of the job call it.

    Args:
        path: of the file, see `Workdir`.
        key: of all that the arrays depend on.
        compute: returns the arrays and a line for the log.
        doing: what `compute` does, for the terminal.

    Raises:
        UserError: the file in the workdir cannot be written, or read by another process.
        StorageError: another process reads another file than process 0 wrote.
    """
    digest = ""
    if peers.is_first:
        found, why = _stored(path, key)
        if why:
            logger.warning(f"{path}: {why}; computed again")
        arrays = _computed(compute, path, key, doing) if found is None else found
        digest = _digest(arrays)
    expected = peers.all_gather_text(path.stem, digest)[0]
    if not peers.is_first:
        arrays = _stored(path, key)[0] or {}
        if _digest(arrays) != expected:
            raise StorageError(
                f"{path}: not the file that {peers.name(0)} has there; the workdir must be the "
                "same folder for all processes"
            )
    return arrays


def _computed(
    compute: Callable[[], tuple[Arrays, str]], path: epath.Path, key: str, doing: str
) -> Arrays:
    """Computes arrays, writes them to the workdir, and logs what they are."""
    began = time.perf_counter()
    with elapsed(doing):
        arrays, line = compute()
    with storage_errors(path, "cannot be written"):
        put(path, npz_bytes({**arrays, "key": np.array(key)}))
    logger.info(f"{line} ({time.perf_counter() - began:.1f} s)")
    return arrays


def _stored(path: epath.Path, key: str) -> tuple[Arrays | None, str]:
    """Returns the arrays in a file, or None and why a file that is there is of no use."""
    with storage_errors(path):
        try:
            arrays = read_npz(path)
        except FileNotFoundError:
            return None, ""
        except ValueError as error:
            return None, f"damaged ({error})"
    if str(arrays.pop("key", "")) != key:
        return None, "made from other data or with other settings"
    return arrays, ""


def _digest(arrays: Arrays) -> str:
    return json_digest({name: sha256(array.tobytes()) for name, array in arrays.items()})
