"""Standard output and error whose failures do not end the program.

Output that cannot be written (closed pipe, full disk, closed terminal) is dropped, and the program
continues: a run is worth more than its log.
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

    lost: OSError | None = None  # the first error because of which output was dropped

    def write(self, data: Any) -> int:
        try:
            while (count := super().write(data)) is None:  # another program made it non-blocking
                select.select([], [self], [])
            return count
        except OSError as error:
            self.lost = self.lost or error
            return memoryview(data).nbytes


class TolerantStream(io.TextIOWrapper):
    """A text stream whose writes never fail, neither on I/O nor on encoding errors."""

    def __init__(self, number: int, like: TextIO | None, *, line_buffering: bool) -> None:
        """
        Args:
            number: the file descriptor; not closed with the stream.
            like: stream from which to copy encoding and buffering; None: UTF-8.
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
    def is_cut(self) -> bool:
        """Returns whether output was dropped, for whatever reason."""
        return self._file.lost is not None

    @property
    def failure(self) -> str:
        """Returns why output was dropped; empty if none was, or the reader closed the pipe."""
        lost = self._file.lost
        if lost is None or lost.errno == errno.EPIPE:
            return ""
        return lost.strerror or str(lost)


@contextlib.contextmanager
def tolerant_streams() -> Iterator[None]:
    """Replaces standard output and error by `TolerantStream`s, unless they are redirected in
    Python, as in a notebook or a test."""
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
    """Suppresses output of C++ code to standard output: gloo prints a line for every device."""
    before = sys.stdout
    if not _is_own(before, 1):
        yield
        return
    before.flush()
    ours, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    sys.stdout = TolerantStream(ours, before, line_buffering=True)
    try:
        yield
    finally:
        sys.stdout.close()
        sys.stdout = before
        os.dup2(ours, 1)
        os.close(ours)


def _take_over(number: int, stream: TextIO | None) -> TolerantStream:
    if stream:
        with contextlib.suppress(OSError):
            stream.flush()
    return TolerantStream(number, stream, line_buffering=False)


def _is_own(stream: TextIO | None, number: int) -> bool:
    """Returns whether a stream writes to the process's standard output (1) or error (2)."""
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() == number
    except (OSError, ValueError):  # an in-memory or closed stream
        return False


def _open_closed() -> None:
    """Opens descriptors 0, 1 and 2 if closed: else the next file gets the number, and receives the
    output of C++ code."""
    with contextlib.suppress(OSError):
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(number, True)
        os.close(number)
