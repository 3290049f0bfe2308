"""Files that must not change while they are mapped, and a line for when they do.

What a map shows is what the file holds now. A store that is overwritten under a run would be
trained on as it is, garbage or not; one that is cut ends the process with SIGBUS.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bert_jax.data_pipeline.errors import StorageError

_SIGINFO = 4  # SA_SIGINFO, on Linux
_kept: dict[int, object] = {}  # address of our handler -> what it refers to, which must outlive it


class WatchedFiles:
    """Sizes and times of files as they were first seen.

    Inode numbers are not compared: a file that was replaced stays mapped as it was, and not every
    file system keeps them.
    """

    def __init__(self, folder: Path = Path(), names: Iterable[str] = ()) -> None:
        """names: relative to the folder; none where everything is in memory."""
        self._folder = folder
        self._seen = {path: _look(path) for path in (f"{folder}/{name}" for name in names)}

    def below(self, name: str) -> "WatchedFiles":
        """Those in a folder of this one, as they were first seen."""
        part = WatchedFiles(self._folder)
        start = f"{self._folder}/{name}/"
        part._seen = {path: seen for path, seen in self._seen.items() if path.startswith(start)}
        return part

    def check(self) -> None:
        """Raises StorageError where a file is no longer what it was. About 2 µs a file."""
        for path, seen in self._seen.items():
            if (now := _look(path)) != seen:
                what = f"{os.path.relpath(path, self._folder)} {_difference(seen, now)}"
                raise StorageError(changed(self._folder, what))


def changed(folder: Path, what: str) -> str:
    """The line about a store that is not what it was when it was opened."""
    return (
        f"{folder}: changed while it was in use: {what}; all checkpoints are from before; restore "
        f"the store (bert-jax data verify --store={folder}), then run the same command"
    )


def _look(path: str) -> tuple[int, int] | None:
    """Size in bytes and time of the last change in ns; None where there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _difference(seen: tuple[int, int] | None, now: tuple[int, int] | None) -> str:
    if now is None:
        return "is gone"
    if seen is None or now[0] != seen[0]:
        return f"had {seen[0] if seen else 0:,} bytes, now {now[0]:,}"
    return "was written to"


class _Action(ctypes.Structure):
    """`struct sigaction` of Linux on 64-bit processors."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def exit_if_cut(folder: Path, arrays: Iterable[np.ndarray], code: int) -> None:
    """From now on, whoever reads a page of these mapped arrays that was cut from its file ends
    the process with a line on standard error that names the folder, and an exit code.

    The signal interrupts compiled code at any place, so the handler is compiled itself: it writes
    a line that is there already, and exits. It takes the place of that of an earlier call, but of
    no other program's, and is for Linux only; for other addresses the signal does what it does by
    default.
    """
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return
    libc, old = ctypes.CDLL(None), _Action()
    libc.sigaction(signal.SIGBUS, None, ctypes.byref(old))
    if old.handler and old.handler not in _kept:
        return
    import numba  # here: what only watches files need not load it

    word = ctypes.c_size_t  # numba passes no other pointer than a number
    libc.write.argtypes, libc.write.restype = (ctypes.c_int, word, word), ctypes.c_ssize_t
    libc._exit.argtypes, libc._exit.restype = (ctypes.c_int,), None
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, word), word
    line = changed(folder, "a part that is read is gone (SIGBUS)")
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

    _kept[handler.address] = (handler, text)
    action = _Action(handler=handler.address, flags=_SIGINFO)
    libc.sigaction(signal.SIGBUS, ctypes.byref(action), None)
