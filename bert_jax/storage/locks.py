"""Locks on files. The kernel releases a lock when its process ends, however it ends.

So a lock is never stale; the text in the file names its holder for the messages of others.
"""

import contextlib
import errno
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Final

from bert_jax.storage.host_name import host_name

_TAKEN: Final = (errno.EWOULDBLOCK, errno.EACCES)
_MAX_BYTES: Final = 4096  # read from the file

_held: set[int] = set()  # file descriptors


def _close_in_child() -> None:
    """Closes a forked child's copies, which would hold the lock after its parent has ended."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


class LockedError(Exception):
    """Another process holds the lock; the message names it."""


class FileLock:
    """An exclusive lock on a file, held from `acquire` to the end of the `with` block.

    The file stays: if it were removed, two processes could each lock a file of this name.
    """

    def __init__(self, path: Path):
        self._path, self._descriptor = path, -1

    def __enter__(self) -> "FileLock":
        return self

    def __exit__(self, *error: object) -> None:
        if self._descriptor >= 0:
            _held.discard(self._descriptor)
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)

    def acquire(self, *, wait: bool = False) -> None:
        """Locks the file, which is created if missing.

        wait: until the holder releases it.

        Raises:
            LockedError: another process holds it.
            OSError: the file cannot be opened, or its file system has no locks.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            if error.errno in _TAKEN:
                raise LockedError(holder) from None
            raise
        self._descriptor = descriptor
        _held.add(descriptor)
        _name_holder(descriptor)


def is_locked(path: Path) -> bool | None:
    """Returns whether a process holds the lock of a file; None if unknown (no access, no file
    locks)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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


def _name_holder(descriptor: int) -> None:
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    about = {"pid": os.getpid(), "host": host_name(), "since": since}
    with contextlib.suppress(OSError):  # a full disk: the lock is held anyway
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(about) + "\n").encode(), 0)


def _holder(descriptor: int) -> str:
    try:
        about = json.loads(os.pread(descriptor, _MAX_BYTES, 0))
        return f"process {about['pid']} on {about['host']} since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "process unknown"
