"""Detects changes to memory-mapped files, and reports them in one line.

A memory map shows the current content of its file. If a store is overwritten during a run, the run
would train on the new content, even garbage; if a file is truncated, SIGBUS kills the process.
"""

import copy
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from bert_jax.errors import StorageError, UserError
from bert_jax.storage.versions import Version, hashed, is_seen, note_same, version_of

_SIGINFO = 4  # SA_SIGINFO, on Linux
_handlers: dict[int, object] = {}  # address of our handler -> objects that must outlive it


class WatchedFiles:
    """The versions of files when they were first seen, and the digests of their content.

    Where the version of a file cannot decide, it is read once: see `storage.versions`.
    """

    def __init__(
        self, folder: Path = Path(), files: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """files: sha256 of files by their name, relative to the folder; empty if all arrays are in
        memory."""
        self._folder, self._lock = folder, threading.Lock()
        self._digests = {f"{folder}/{name}": digest for name, digest in files.items()}
        self._paths = list(self._digests)
        self._seen = {path: _version(path) for path in self._paths}

    def below(self, name: str) -> "WatchedFiles":
        """Returns the files in a subfolder, with what is known of them."""
        part, start = copy.copy(self), f"{self._folder}/{name}/"
        part._paths = [path for path in self._paths if path.startswith(start)]
        return part

    def check(self) -> None:
        """Raises StorageError if a file changed since it was first seen. About 2 µs per file."""
        for path in self._paths:
            seen, now = self._seen[path], _version(path)
            if now != seen and not (seen and now and is_seen(path, seen, now)):
                self._compare(path)

    def _compare(self, path: str) -> None:
        """Raises StorageError unless a file of another version has the same content."""
        with self._lock:  # one thread reads it for all
            seen, now = self._seen[path], _version(path)
            if now == seen:
                return
            if not (seen and now and now.may_equal(seen) and self._is_same(path, now)):
                what = f"{os.path.relpath(path, self._folder)} {_difference(seen, now)}"
                raise StorageError(changed(self._folder, what))
            note_same(path, seen, now)
            self._seen[path] = now

    def _is_same(self, path: str, now: Version) -> bool:
        """Returns whether a file of this version has the content that was verified."""
        try:
            found = hashed(Path(path))
        except (OSError, UserError):
            return False
        return found.digest == self._digests[path] and found.version[:3] == now[:3]


def changed(folder: Path, what: str) -> str:
    """Returns the error message for a store that changed after it was opened."""
    return (
        f"{folder}: changed while it was in use: {what}; all checkpoints predate the change; "
        f"restore the store (bert-jax data verify --store={folder}), then run the same command "
        "again"
    )


def _version(path: str) -> Version | None:
    """Returns the version of a file; None if it is missing."""
    try:
        return version_of(path)
    except OSError:
        return None


def _difference(seen: Version | None, now: Version | None) -> str:
    if now is None:
        return "was removed"
    if seen is None or now.size != seen.size:
        return f"had {seen.size if seen else 0:,} bytes, now {now.size:,}"
    return "was modified"


class _Action(ctypes.Structure):
    """`struct sigaction` of Linux on 64-bit processors."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def exit_on_truncated_map(folder: Path, arrays: Iterable[np.ndarray], code: int) -> None:
    """Installs a SIGBUS handler for these mapped arrays: reading a page that was truncated from its
    file ends the process with an exit code and a line on standard error that names the folder.

    The signal may interrupt compiled code anywhere, so the handler is compiled as well: it writes a
    prepared line and exits. It replaces the handler of an earlier call but none of another library,
    and needs Linux; for other addresses the signal has its default action.
    """
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return
    libc, old = ctypes.CDLL(None), _Action()
    libc.sigaction(signal.SIGBUS, None, ctypes.byref(old))
    if old.handler and old.handler not in _handlers:
        return
    import numba  # imported here: `WatchedFiles` alone does not need it

    word = ctypes.c_size_t  # numba passes pointers only as integers
    libc.write.argtypes, libc.write.restype = (ctypes.c_int, word, word), ctypes.c_ssize_t
    libc._exit.argtypes, libc._exit.restype = (ctypes.c_int,), None
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, word), word
    line = changed(folder, "a file was truncated (SIGBUS)")
    write, leave, default = libc.write, libc._exit, libc.signal
    text = ctypes.create_string_buffer(f"error: {line}\n".encode(errors="replace"))
    start, length = ctypes.addressof(text), len(text) - 1
    maps = np.array([(a.ctypes.data, a.ctypes.data + a.nbytes) for a in arrays], np.uint64)

    @numba.cfunc("void(int32, CPointer(uint64), voidptr)")
    def handler(number, info, context):
        for k in range(len(maps)):
            if maps[k, 0] <= info[2] < maps[k, 1]:  # siginfo_t.si_addr
                write(2, start, length)
                leave(code)
        default(number, 0)  # on return the same instruction raises it again

    _handlers[handler.address] = (handler, text)
    action = _Action(handler=handler.address, flags=_SIGINFO)
    libc.sigaction(signal.SIGBUS, ctypes.byref(action), None)
