"""One trainer per workdir: a running trainer holds the lock on its lock file and records its pid.

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
def lock(file: epath.PathLike) -> Iterator[None]:
    """Holds the lock of a workdir, creating the folder; only process 0 of a run calls this.

    file: `Workdir.lock`.

    Raises:
        UserError: another process holds it; the message has its pid, its host and since when.
    """
    local = _local(file)
    descriptor = None if local is None else _take(local)
    try:
        yield
    finally:
        if descriptor is not None:
            _held.discard(descriptor)
            # The file stays: if it were removed, two processes could each lock a file of this name.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)


def is_locked(file: epath.PathLike) -> bool | None:
    """Whether a trainer is running in a workdir; None if unknown (remote, no file locks)."""
    local = _local(file)
    if local is None:
        return None
    try:
        descriptor = os.open(local, os.O_RDONLY | os.O_CLOEXEC)
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


def _take(file: Path) -> int | None:
    """Returns the descriptor that holds the lock, None where locking is impossible."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
                f"{file.parent}: another trainer is running there ({holder}); wait until it ends, "
                "stop it, or give another --workdir"
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


def _local(file: epath.PathLike) -> Path | None:
    """Returns the file as a local path; None for a bucket."""
    name = os.fspath(file)
    return None if "://" in name else Path(name)
