"""The output of several processes as one: whole lines under the names of their hosts."""

import os
import select

_CHUNK = 2**16  # bytes read at once
_LONGEST = 2**20  # bytes: a longer line is shown in pieces of so many
_ENOUGH = 2**22  # bytes not yet written: until the reader catches up, nothing more is read


class Lines:
    """One pipe from a process; cuts what comes into whole lines.

    Bytes stay bytes: what is not UTF-8 passes unchanged.
    """

    def __init__(self, fd: int, name: str):
        """fd: the end to read, from now on this object's. name: stands before each line."""
        self.fd, self._prefix, self._rest = fd, f"{name} | ".encode(), b""
        os.set_blocking(fd, False)

    def read(self) -> bytes | None:
        """The lines that are whole after one more read; None where nothing more will come."""
        chunk = self._take()
        return None if chunk == b"" else self._cut(chunk or b"")

    def close(self) -> bytes:
        """What the pipe still holds, the unfinished last line included; closes it.

        A process of the process may hold the other end for ever: what is not there yet is not
        waited for.
        """
        last = []
        for _ in range(_LONGEST // _CHUNK):  # a pipe holds no more
            chunk = self._take()
            if not chunk:
                break
            last.append(self._cut(chunk))
        os.close(self.fd)
        if self._rest:
            last.append(self._named([self._rest]))
        return b"".join(last)

    def _take(self) -> bytes | None:
        """What is there; empty at the end, None where nothing is there yet."""
        try:
            return os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return None

    def _cut(self, chunk: bytes) -> bytes:
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) >= _LONGEST:
            whole.append(self._rest)
            self._rest = b""
        return self._named(whole)

    def _named(self, lines: list[bytes]) -> bytes:
        return b"".join(self._prefix + line + b"\n" for line in lines)


class Out:
    """A file descriptor that is written without ever waiting for whoever reads it."""

    def __init__(self, fd: int):
        self.fd, self.is_closed = fd, False
        self._waiting = bytearray()

    @property
    def wants(self) -> bool:
        """Whether something is to be written."""
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) > _ENOUGH

    def put(self, lines: bytes) -> None:
        if not self.is_closed:
            self._waiting += lines

    def write(self) -> None:
        """Writes a piece, when `poll` has said that there is room."""
        try:
            # So much fits, and at once, where a pipe has room at all.
            del self._waiting[: os.write(self.fd, self._waiting[: select.PIPE_BUF])]
        except BlockingIOError:  # no room after all
            return
        except BrokenPipeError:  # nobody reads any more; the job continues
            self.is_closed = True
            self._waiting.clear()
        except OSError:  # a full disk: lines are lost, the job goes on
            self._waiting.clear()

    def flush(self) -> None:
        """Writes everything; waits for the reader."""
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        while self._waiting:
            poll.poll()
            self.write()
