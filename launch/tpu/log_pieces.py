"""Prints the output of the hosts of a job, which their agents write to the bucket in pieces."""

import sys
from collections.abc import Iterator

from bert_jax.launch.tpu.job_records import Records, Snapshot

_LAST = 20  # lines of a job that failed


class Printer:
    """Prints every line once, with the name of its host before it.

    A piece is named by its position, so the next one of each log is read by its name: listing the
    pieces of days at each look would take minutes.
    """

    def __init__(self, records: Records):
        self._records = records
        self._next: dict[str, int] = {}  # position of the next piece, by log
        self._rests: dict[str, bytes] = {}  # incomplete last line, by log
        self._oldest = 0  # number of the first queued resource whose hosts may still write

    def print_written(self) -> None:
        """Prints all that there is, in the order in which it was written."""
        for piece in self._records.log_pieces():
            log, _, position = piece.name.rpartition("-")
            if int(position) == self._next.get(log, 0):
                self._print(log)

    def print_new(self, snapshot: Snapshot) -> None:
        """Prints what the hosts have written since; snapshot: of the records, before this."""
        for log in list(self._logs(snapshot)):
            while self._print(log):
                pass
        # The machines of all but the newest were gone before that was requested.
        self._oldest = max((history.number for history in snapshot.histories), default=0)

    def print_rest(self) -> None:
        """Prints incomplete last lines."""
        for log, rest in self._rests.items():
            if rest:
                _write([_named(log, rest)])
        self._rests.clear()

    def _logs(self, snapshot: Snapshot) -> Iterator[str]:
        """Yields the logs that may have grown: the agents' own, those of the newest attempts."""
        hosts = snapshot.submission.hosts if snapshot.submission else 0
        for history in snapshot.histories:
            for host in range(hosts if history.number >= self._oldest else 0):
                folder = self._records.log_folder(history.number, host)
                attempts = range(1, len(history.plan.attempts) + 1)
                begun = [a for a in attempts if f"{folder}/{a:04d}" in self._next]
                newest = begun[-1] if begun else 1  # an agent ends a log before it begins the next
                yield f"{folder}/0000"
                yield from (f"{folder}/{attempt:04d}" for attempt in attempts[newest - 1 :])

    def _print(self, log: str) -> bool:
        """Prints the next piece of a log; returns whether there is one."""
        position = self._next.get(log, 0)
        data = self._records.bucket.read(f"{log}-{position:012d}")
        if not data:
            return False
        self._next[log] = position + len(data)
        *complete, self._rests[log] = (self._rests.get(log, b"") + data).split(b"\n")
        _write([_named(log, line) for line in complete])
        return True


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
