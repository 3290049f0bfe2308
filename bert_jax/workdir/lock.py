"""One trainer per workdir: a running trainer holds a lock on <workdir>/.lock and records its pid.

The kernel releases the lock when the process ends, however it ends, so it is never stale; the text
in the file is for the error message of a second trainer. Without file locks (some network file
systems, buckets) the workdir is unprotected, as is a folder that cannot be written: the first write
to it reports that.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from etils import epath

from bert_jax.errors import UserError

_NAME: Final = ".lock"
_TRIES: Final = (
    20  # `is_locked` elsewhere holds the lock for an instant, a dying process for longer
)
_PAUSE: Final = 0.1  # seconds between tries
_TAKEN: Final = (errno.EWOULDBLOCK, errno.EACCES)
_MAX_BYTES: Final = 4096  # read from the file

_held: set[int] = set()  # file descriptors


def _close_in_child() -> None:
    """Closes a forked child's copies, which would hold the lock after the trainer has ended."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


@contextlib.contextmanager
def lock(workdir: epath.PathLike) -> Iterator[None]:
    """Holds the workdir's lock, creating the folder; only process 0 of a run calls this.

    Raises:
        UserError: another process holds it; the message has its pid, its host and since when.
    """
    folder = _local(workdir)
    descriptor = None if folder is None else _take(folder)
    try:
        yield
    finally:
        if descriptor is not None:
            _held.discard(descriptor)
            # The file stays: if it were removed, two processes could each lock a file of this name.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)


def is_locked(workdir: epath.PathLike) -> bool | None:
    """Whether a trainer is running in the workdir; None if unknown (remote, no file locks)."""
    folder = _local(workdir)
    if folder is None:
        return None
    try:
        descriptor = os.open(folder / _NAME, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in _TAKEN else None
    finally:
        os.close(descriptor)
    return False


def _take(folder: Path) -> int | None:
    """Returns the descriptor that holds the lock, None where locking is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return None
    for tries_left in reversed(range(_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno in _TAKEN and tries_left:
                time.sleep(_PAUSE)
                continue
            holder = _holder(descriptor)
            os.close(descriptor)
            if error.errno not in _TAKEN:
                return None
            raise UserError(
                f"{folder}: another trainer is running there ({holder}); wait until it ends, stop "
                "it, or give another --workdir"
            ) from None
    _held.add(descriptor)
    about = {
        "pid": os.getpid(),
        "host": os.environ.get("BERT_JAX_HOST_NAME") or socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }
    with contextlib.suppress(OSError):  # a full disk: the lock is held anyway
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(about) + "\n").encode(), 0)
    return descriptor


def _holder(descriptor: int) -> str:
    try:
        about = json.loads(os.pread(descriptor, _MAX_BYTES, 0))
        return f"process {about['pid']} on {about['host']} since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "process unknown"


def _local(workdir: epath.PathLike) -> Path | None:
    """Returns the workdir as a local path; None for a bucket."""
    name = os.fspath(workdir)
    return None if "://" in name else Path(name)
