"""One trainer per workdir: <workdir>/.lock is locked while one is at work, and says which.

The kernel drops the lock when the process ends, however it ends, so none is ever stale; the text in
the file is for whoever is refused. A file system that cannot lock (some network ones, buckets)
leaves the workdir unguarded, as does a folder that cannot be written: what writes there says so.
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
_TRIES: Final = 20  # `is_locked` of another process locks for an instant, a dying one for longer
_PAUSE: Final = 0.1  # seconds between them
_TAKEN: Final = (errno.EWOULDBLOCK, errno.EACCES)
_MOST: Final = 4096  # bytes read of the file

_held: set[int] = set()  # file descriptors


def _forget() -> None:
    """In a forked child: closes its copies, which would keep the lock when the trainer is gone."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def lock(workdir: epath.PathLike) -> Iterator[None]:
    """Holds the workdir's lock; the folder is made. Of several processes of a run, the first only.

    Raises:
        UserError: another process holds it; names its pid, its host and since when.
    """
    folder = _local(workdir)
    descriptor = None if folder is None else _take(folder)
    try:
        yield
    finally:
        if descriptor is not None:
            _held.discard(descriptor)
            # The file stays: removing it would let two hold a lock, on two files of one name.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)


def is_locked(workdir: epath.PathLike) -> bool | None:
    """Whether a trainer is at work there; None where that cannot be told (remote, no locks)."""
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
    """The descriptor that holds the lock, None where locking is impossible."""
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
            who = _holder(descriptor)
            os.close(descriptor)
            if error.errno not in _TAKEN:
                return None
            raise UserError(
                f"{folder}: another trainer is at work there ({who}); wait until it ends, stop it, "
                "or give another --workdir"
            ) from None
    _held.add(descriptor)
    about = {
        "pid": os.getpid(),
        "host": os.environ.get("BERT_JAX_HOST_NAME") or socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }
    with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(about) + "\n").encode(), 0)
    return descriptor


def _holder(descriptor: int) -> str:
    try:
        about = json.loads(os.pread(descriptor, _MOST, 0))
        return f"process {about['pid']} on {about['host']} since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "it has not said which"


def _local(workdir: epath.PathLike) -> Path | None:
    """The folder as a local one; None for a bucket."""
    name = os.fspath(workdir)
    return None if "://" in name else Path(name)
