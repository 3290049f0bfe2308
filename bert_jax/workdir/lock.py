"""One trainer per workdir: a running trainer holds the lock on its lock file and records its pid.

Without file locks (some network file systems, buckets) the workdir is unprotected, as is a folder
that cannot be written: the first write to it reports that.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from bert_jax.errors import UserError
from bert_jax.storage import locks
from bert_jax.storage.locks import FileLock, LockedError
from bert_jax.storage.remote import is_remote
from bert_jax.storage.retry import RetryPolicy, retry

# `is_locked` in another process holds the lock for an instant, a dying trainer for up to 2 s.
_POLICY = RetryPolicy(6, 0.06, retryable=lambda error: isinstance(error, LockedError))


@contextlib.contextmanager
def lock(file: epath.PathLike) -> Iterator[None]:
    """Holds the lock of a workdir, creating the folder; only process 0 of a run calls this.

    file: `Workdir.lock`.

    Raises:
        UserError: another process holds it; the message has its pid, its host and since when.
    """
    if is_remote(file):
        yield
        return
    path = Path(file)
    with FileLock(path) as file_lock:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            retry(file_lock.acquire, _POLICY)
        except LockedError as holder:
            raise UserError(
                f"{path.parent}: another trainer is running there ({holder}); wait until it ends, "
                "stop it, or give another --workdir"
            ) from None
        except OSError:
            pass  # unprotected
        yield


def is_locked(file: epath.PathLike) -> bool | None:
    """Returns whether a trainer is running in a workdir; None if unknown (remote, no file
    locks)."""
    return None if is_remote(file) else locks.is_locked(Path(file))
