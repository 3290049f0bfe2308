"""Prints the output of the hosts of a job, which their agents write to the bucket in pieces."""

import sys

from bert_jax.launch.records import Records

_LAST = 20  # lines of a job that failed


class Printer:
    """Prints every line once, with the name of its host before it."""

    def __init__(self, records: Records):
        self._records = records
        self._printed: set[str] = set()  # pieces
        self._rests: dict[str, bytes] = {}  # incomplete last line, by log

    def lines(self, *, last: bool = False) -> list[bytes]:
        """Returns the complete lines that are new; all that is left if `last`."""
        lines = []
        for piece in self._records.log_pieces():
            if piece.name in self._printed:
                continue
            data = self._records.bucket.read(piece.name)
            if data is None:  # deleted meanwhile
                continue
            self._printed.add(piece.name)
            log = piece.name.rpartition("-")[0]
            *complete, self._rests[log] = (self._rests.get(log, b"") + data).split(b"\n")
            lines += [_named(log, line) for line in complete]
        if last:
            lines += [_named(log, rest) for log, rest in self._rests.items() if rest]
            self._rests.clear()
        return lines

    def print_new(self, *, last: bool = False) -> None:
        _write(self.lines(last=last))


def print_last(records: Records) -> None:
    """Prints the last lines of a job's newest output, and reads no more pieces than these need."""
    lines: list[bytes] = []
    for piece in reversed(records.log_pieces()):
        data = records.bucket.read(piece.name) or b""
        log = piece.name.rpartition("-")[0]
        lines = [_named(log, line) for line in data.removesuffix(b"\n").split(b"\n")] + lines
        if len(lines) >= _LAST:
            break
    _write(lines[-_LAST:])


def _named(log: str, line: bytes) -> bytes:
    host = log.split("/")[-2]  # logs/RUN/NUMBER/HOST/ATTEMPT
    return f"host-{host} | ".encode() + line + b"\n"


def _write(lines: list[bytes]) -> None:
    sys.stdout.write(b"".join(lines).decode(errors="backslashreplace"))
    sys.stdout.flush()
