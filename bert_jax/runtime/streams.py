"""Standard output and error that a program outlives.

What cannot be written, because nobody reads it any more, the disk under it is full or the terminal
is gone, is left out, and the program continues: a run is worth more than its log.
"""

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class _Raw(io.FileIO):
    """A file descriptor whose writes never fail."""

    lost: OSError | None = None  # why something was left out, the first time

    def write(self, data: Any) -> int:
        try:
            while (count := super().write(data)) is None:  # another program made it non-blocking
                select.select([], [self], [])
            return count
        except OSError as error:
            self.lost = self.lost or error
            return memoryview(data).nbytes


class Outliving(io.TextIOWrapper):
    """A text stream whose writes never fail, neither for the disk nor for a character."""

    def __init__(self, number: int, like: TextIO | None, *, line_buffering: bool) -> None:
        """
        Args:
            number: the file descriptor; stays open.
            like: whose encoding and buffering are taken; None: UTF-8.
        """
        self._file = _Raw(number, "w", closefd=False)
        unbuffered = bool(getattr(like, "write_through", False))
        super().__init__(
            self._file if unbuffered else io.BufferedWriter(self._file),
            encoding=like.encoding if like else "utf-8",
            errors="backslashreplace",
            line_buffering=line_buffering or bool(getattr(like, "line_buffering", False)),
            write_through=unbuffered,
        )

    @property
    def failure(self) -> str:
        """Why what was written is not complete; empty where it is, or the reader went away."""
        lost = self._file.lost
        if lost is None or lost.errno == errno.EPIPE:
            return ""
        return lost.strerror or str(lost)


@contextlib.contextmanager
def outliving() -> Iterator[None]:
    """Standard output and error are `Outliving` inside, where they are the program's own: not in a
    notebook, not in a test that reads them."""
    _open_closed()
    before = sys.stdout, sys.stderr
    if sys.stdout is None or _is_own(sys.stdout, 1):
        sys.stdout = _take_over(1, sys.stdout)
    if sys.stderr is None or _is_own(sys.stderr, 2):
        sys.stderr = _take_over(2, sys.stderr)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def own_stdout() -> Iterator[None]:
    """Standard output is Python's alone: gloo prints a line for every device from C++."""
    before = sys.stdout
    if not _is_own(before, 1):
        yield
        return
    before.flush()
    ours, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    sys.stdout = Outliving(ours, before, line_buffering=True)
    try:
        yield
    finally:
        sys.stdout.close()
        sys.stdout = before
        os.dup2(ours, 1)
        os.close(ours)


def _take_over(number: int, stream: TextIO | None) -> Outliving:
    if stream:
        with contextlib.suppress(OSError):
            stream.flush()
    return Outliving(number, stream, line_buffering=False)


def _is_own(stream: TextIO | None, number: int) -> bool:
    """Whether a stream is the program's standard output (1) or error (2)."""
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() == number
    except (OSError, ValueError):  # a stream in memory, or one that is closed
        return False


def _open_closed() -> None:
    """Opens 0, 1 and 2 where they were closed: else the next file gets the number, and what C++
    prints goes into it."""
    with contextlib.suppress(OSError):
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(number, True)
        os.close(number)
