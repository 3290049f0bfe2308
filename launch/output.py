"""Merges the output of several processes line by line, each line prefixed with its host."""

import os
import select

NAME = "launch"  # prefix of the launcher's own lines

_CHUNK = 2**16  # bytes per read
_MAX_LINE = 2**20  # bytes: a longer line is split into pieces of this size
_MAX_BUFFERED = 2**22  # bytes: reading pauses until the reader of the output catches up


class Lines:
    """Splits the output from one pipe of a process into complete lines.

    Works on bytes: invalid UTF-8 passes unchanged.
    """

    def __init__(self, fd: int, name: str):
        """fd: the read end, owned by this object from now on. name: prefix of each line."""
        self.fd, self._prefix, self._rest = fd, f"{name} | ".encode(), b""
        os.set_blocking(fd, False)

    def read(self) -> bytes | None:
        """Reads once and returns the complete lines; None at the end of the output."""
        chunk = self._take()
        return None if chunk == b"" else self._cut(chunk or b"")

    def close(self) -> bytes:
        """Returns what the pipe still holds, including an incomplete last line, and closes it.

        A child process may hold the other end open forever, so this does not wait for more.
        """
        last = []
        for _ in range(_MAX_LINE // _CHUNK):  # a pipe holds no more
            if chunk := self._take():
                last.append(self._cut(chunk))
        os.close(self.fd)
        if self._rest:
            last.append(self._named([self._rest]))
        return b"".join(last)

    def _take(self) -> bytes | None:
        """Returns the available bytes; empty at the end, None if none are available yet."""
        try:
            return os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return None

    def _cut(self, chunk: bytes) -> bytes:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) >= _MAX_LINE:
            lines.append(self._rest)
            self._rest = b""
        return self._named(lines)

    def _named(self, lines: list[bytes]) -> bytes:
        return b"".join(self._prefix + line + b"\n" for line in lines)


class Out:
    """Writes to a file descriptor without ever waiting for its reader."""

    def __init__(self, fd: int):
        self.fd, self.is_closed = fd, False
        self._waiting = bytearray()

    @property
    def wants(self) -> bool:
        """Returns whether there is buffered output to write."""
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) > _MAX_BUFFERED

    def put(self, lines: bytes) -> None:
        if not self.is_closed:
            self._waiting += lines

    def write(self) -> None:
        """Writes a piece after `poll` reported that there is room."""
        try:
            # A pipe with room takes PIPE_BUF bytes without blocking.
            del self._waiting[: os.write(self.fd, self._waiting[: select.PIPE_BUF])]
        except BlockingIOError:  # no room after all
            return
        except BrokenPipeError:  # the reader is gone; the job continues
            self.is_closed = True
            self._waiting.clear()
        except OSError:  # a full disk: lines are lost, the job continues
            self._waiting.clear()

    def flush(self) -> None:
        """Writes everything; waits for the reader."""
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        while self._waiting:
            poll.poll()
            self.write()


def say(line: str) -> None:
    """Prints a line of the launcher itself."""
    print(f"{NAME} | {line}", flush=True)
