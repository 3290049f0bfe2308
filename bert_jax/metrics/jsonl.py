"""Appends records to a durable log without ever interrupting a run.

On a disk a record is written when `append` returns: it survives SIGKILL, and a truncated record
stays on a line of its own. Objects in a bucket cannot be appended to, so a thread writes numbered
parts, and rewrites the last one about once a second while new records arrive:

    NAME.jsonl          on a disk
    NAME-00001.jsonl    in a bucket, NAME-00002.jsonl after 1 MB and in every start

Records that cannot be written stay in memory and are retried with the next record (in a bucket,
after a delay); a warning reports the failure once. `append` never raises.
"""

import collections
import errno
import logging
import os
import re
import threading
from collections.abc import Iterator
from typing import Final

from etils import epath

from bert_jax.runtime.log import NOTICE, logger
from bert_jax.storage.read_files import open_bytes
from bert_jax.storage.remote import is_remote, open_path, reason

_LONGEST: Final = 1 << 24  # bytes of a line in memory at once
_PART_BYTES: Final = 1 << 20  # size at which a part in a bucket is closed; bounds what is rewritten
_MAX_PENDING: Final = 10_000  # records buffered while writes fail; then the oldest are dropped
_MIN_DELAY: Final = 1.0  # seconds between writes of one object: a bucket refuses more
_MAX_DELAY: Final = 60.0  # seconds between retries
_CLOSE_TIMEOUT: Final = 15.0  # seconds to wait at the end of a run for its last records
_FLUSH_TIMEOUT: Final = 5.0  # seconds to wait for them at other times


class Appender:
    """Appends bytes to a path, one record after another."""

    def __init__(self, path: epath.PathLike, *, header: bytes = b"", separator: bytes = b""):
        """Opens nothing yet. header: bytes at the start of every new file or part. separator: bytes
        at the end of every record; an existing file that ends otherwise was truncated, and gets one
        before the next record."""
        self.path, self.header, self.separator = open_path(path), header, separator
        self.pending: collections.deque[bytes] = collections.deque()
        self.lock = threading.Lock()  # guards `pending`
        self._lost = 0  # records dropped since the last success
        self._failing = False
        self._sink = _Parts(self) if is_remote(path) else _File(self)

    def append(self, record: bytes) -> None:
        """Writes a record, or buffers it until it can be written."""
        with self.lock:
            self.pending.append(record)
            if len(self.pending) > _MAX_PENDING:
                self.pending.popleft()
                self._lost += 1
        self._sink.write()

    def flush(self) -> None:
        """Waits until the records so far are written, for at most `_FLUSH_TIMEOUT` seconds."""
        self._sink.flush()

    def close(self) -> None:
        """Retries pending records once; in a bucket for at most `_CLOSE_TIMEOUT` seconds."""
        unwritten = self._sink.close() + self._lost
        if unwritten:
            logger.warning(f"{self.path}: {unwritten:,} records could not be written")

    def report_failure(self, error: Exception) -> None:
        """Logs the error, once until a write succeeds again."""
        if not self._failing:
            logger.warning(
                f"{self.path}: cannot be written ({reason(error)}); training continues, records "
                "are buffered in memory"
            )
        self._failing = True

    def report_recovery(self) -> None:
        """Logs that writes succeed again, if they failed before."""
        if self._failing:
            lost = f"; the {self._lost:,} oldest records are lost" if self._lost else ""
            level = logging.WARNING if self._lost else NOTICE
            logger.log(level, f"{self.path}: writes succeed again{lost}")
        self._failing, self._lost = False, 0


class _File:
    """One file on a disk; every record is one system call."""

    def __init__(self, owner: Appender):
        self._owner, self._descriptor = owner, -1
        self._write_lock = threading.Lock()  # a failed save is recorded from a thread

    def write(self) -> None:
        owner = self._owner
        with self._write_lock:
            try:
                if self._descriptor < 0:
                    self._open()
                while owner.pending:
                    self._write_all(owner.pending[0])
                    owner.pending.popleft()
            except OSError as error:
                self._close_file()
                owner.report_failure(error)
            else:
                owner.report_recovery()

    def _open(self) -> None:
        owner, path = self._owner, os.fspath(self._owner.path)
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o666)
        size = os.fstat(self._descriptor).st_size
        ends = len(owner.separator)
        if not size:
            self._write_all(owner.header)
        elif os.pread(self._descriptor, ends, max(size - ends, 0)) != owner.separator:
            self._write_all(owner.separator)

    def _write_all(self, data: bytes) -> None:
        """Writes all bytes or none; raises OSError if the disk is full."""
        before = os.fstat(self._descriptor).st_size
        if os.write(self._descriptor, data) != len(data):
            os.ftruncate(self._descriptor, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def flush(self) -> None:
        """Nothing waits: `write` returns after the system call."""

    def close(self) -> int:
        """Records that are still not written."""
        if self._owner.pending:
            self.write()
        self._close_file()
        return len(self._owner.pending)


class _Parts:
    """Numbered objects in a bucket, written by a background thread."""

    def __init__(self, owner: Appender):
        self._owner = owner
        self._part: list[bytes] = []  # records of this part; the last `_unsent` are not uploaded
        self._bytes = self._unsent = 0
        self._number = 0  # of the part; 0 until the existing parts were listed
        self._uploaded = 0  # records, since the start
        self._progress = threading.Condition(owner.lock)  # notified of `_uploaded`
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def write(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="event-log", daemon=True)
            self._thread.start()
        self._wake.set()

    def flush(self) -> None:
        with self._progress:
            records = self._uploaded + self._unwritten()
            self._progress.wait_for(lambda: self._uploaded >= records, _FLUSH_TIMEOUT)

    def close(self) -> int:
        """Records that are still not written."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT)
        return self._unwritten()

    def _unwritten(self) -> int:
        return len(self._owner.pending) + self._unsent

    def _work(self) -> None:
        delay = 0.0
        while not self._closing.is_set() or self._unwritten():
            self._wake.wait()
            self._closing.wait(delay)  # no delay at the end of the run
            self._wake.clear()
            if not self._unwritten():
                continue
            last = self._closing.is_set()  # an attempt that begins after `close` was called
            try:
                self._upload()
            except Exception as error:  # any error: logging must not end a run
                self._owner.report_failure(error)
                delay = min(max(2 * delay, _MIN_DELAY), _MAX_DELAY)
                if last:
                    return
            else:
                self._owner.report_recovery()
                delay = _MIN_DELAY
            if self._unwritten():
                self._wake.set()

    def _upload(self) -> None:
        """Rewrites the part with the pending records; starts a new part once it is large."""
        owner = self._owner
        if not self._number:
            self._number = 1 + max((number for number, _ in _parts(owner.path)), default=0)
        with owner.lock:
            while owner.pending and self._bytes < _PART_BYTES:
                self._part.append(owner.pending.popleft())
                self._bytes += len(self._part[-1])
                self._unsent += 1
        path = owner.path.with_name(f"{owner.path.stem}-{self._number:05d}{owner.path.suffix}")
        path.write_bytes(owner.header + b"".join(self._part))
        with self._progress:
            self._uploaded, self._unsent = self._uploaded + self._unsent, 0
            self._progress.notify_all()
        if self._bytes >= _PART_BYTES:
            self._number, self._part, self._bytes = self._number + 1, [], 0


class EventLog:
    """Appends lines to a path; see the module docstring."""

    def __init__(self, path: epath.PathLike):
        self._appender = Appender(path, separator=b"\n")

    def append(self, line: str) -> None:
        """Writes a line, with or without its newline, or buffers it until it can be written."""
        self._appender.append(line.rstrip("\n").encode() + b"\n")

    def flush(self) -> None:
        """Waits until the lines so far are written, or that takes too long."""
        self._appender.flush()

    def close(self) -> None:
        """Retries pending lines once."""
        self._appender.close()


def read_lines(path: epath.PathLike) -> Iterator[str]:
    """Yields the lines of a log in the order written: the file, then the parts; none if no log
    exists. Raises the errors of the disk or the bucket."""
    opened = open_path(path)
    files = [opened] if opened.exists() else []
    for file in [*files, *(part for _, part in _parts(opened))]:
        with open_bytes(file) as stream:
            for line in iter(lambda: stream.readline(_LONGEST), b""):
                yield line.decode("utf-8", "replace").removesuffix("\n")


def _parts(path: epath.Path) -> list[tuple[int, epath.Path]]:
    """Number and path of every existing part, ascending."""
    name = re.compile(rf"{re.escape(path.stem)}-(\d{{5,}}){re.escape(path.suffix)}")
    try:
        matches = [(name.fullmatch(file.name), file) for file in path.parent.iterdir()]
    except FileNotFoundError:
        return []
    return sorted((int(match[1]), file) for match, file in matches if match)
