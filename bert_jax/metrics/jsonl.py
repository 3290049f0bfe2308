"""Appends records to a file that outlives the process, and never gets in the way of a run.

On a disk a record is there when `append` returns: it survives a kill, and one that was cut stays
alone on its line. In a bucket nothing can be appended, so a thread writes numbered parts, the last
one anew about every second while there is something new:

    <workdir>/metrics.jsonl          on a disk
              metrics-00001.jsonl    in a bucket, metrics-00002.jsonl after 1 MB and in every start

What cannot be written waits in memory, is tried again with the next record (in a bucket, after a
while), and is said once on standard error. `append` never raises.
"""

import collections
import errno
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import Final

from etils import epath

from bert_jax.data_pipeline.storage.remote import is_remote, open_path, reason

_PART_BYTES: Final = 1 << 20  # of a part in a bucket: what the last one is at most written anew
_WAITING: Final = 10_000  # records kept while nothing can be written; then the oldest go
_PAUSE: Final = 1.0  # seconds between two writes of one object: more are refused
_LONGEST_PAUSE: Final = 60.0  # seconds between attempts
_CLOSE: Final = 15.0  # seconds that a run waits for its last records


class Appender:
    """Appends bytes to a path, one record after another."""

    def __init__(self, path: epath.PathLike, *, header: bytes = b"", separator: bytes = b""):
        """Opens nothing yet.

        Args:
            header: what every new file or part begins with.
            separator: what every record ends with; an existing file that ends otherwise was cut,
                and gets one before the next record.
        """
        self.path, self.header, self.separator = open_path(path), header, separator
        self.waiting: collections.deque[bytes] = collections.deque()
        self.lock = threading.Lock()  # of `waiting`
        self._lost = 0  # records given up since the last success
        self._failing = False
        self._sink = _Parts(self) if is_remote(path) else _File(self)

    def append(self, record: bytes) -> None:
        """Writes a record, or keeps it for later."""
        with self.lock:
            self.waiting.append(record)
            if len(self.waiting) > _WAITING:
                self.waiting.popleft()
                self._lost += 1
        self._sink.write()

    def close(self) -> None:
        """Tries once more to write what waits; in a bucket for some seconds at most."""
        left = self._sink.close() + self._lost
        if left:
            print(f"{self.path}: {left:,} records could not be written", file=sys.stderr)

    def failed(self, error: Exception) -> None:
        """Says what is wrong, once until it is well again."""
        if not self._failing:
            print(
                f"{self.path}: cannot be written ({reason(error)}); the run goes on, records wait "
                "in memory",
                file=sys.stderr,
            )
        self._failing = True

    def worked(self) -> None:
        """Says that it is well again, if it was not."""
        if self._failing:
            lost = f"; the {self._lost:,} oldest records are lost" if self._lost else ""
            print(f"{self.path}: is written again{lost}", file=sys.stderr)
        self._failing, self._lost = False, 0


class _File:
    """One file on a disk; every record is one system call."""

    def __init__(self, owner: Appender):
        self._owner, self._descriptor = owner, -1
        self._turn = threading.Lock()  # a checkpoint that fails is noted by its own thread

    def write(self) -> None:
        with self._turn:
            self._write()

    def _write(self) -> None:
        owner = self._owner
        try:
            if self._descriptor < 0:
                self._open()
            while owner.waiting:
                self._put(owner.waiting[0])
                owner.waiting.popleft()
        except OSError as error:
            self._shut()
            owner.failed(error)
        else:
            owner.worked()

    def _open(self) -> None:
        owner, path = self._owner, os.fspath(self._owner.path)
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o666)
        size = os.fstat(self._descriptor).st_size
        ends = len(owner.separator)
        if not size:
            self._put(owner.header)
        elif os.pread(self._descriptor, ends, max(size - ends, 0)) != owner.separator:
            self._put(owner.separator)

    def _put(self, data: bytes) -> None:
        """All of it, or nothing."""
        before = os.fstat(self._descriptor).st_size
        if os.write(self._descriptor, data) != len(data):
            os.ftruncate(self._descriptor, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _shut(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def close(self) -> int:
        """Records that are still not written."""
        if self._owner.waiting:
            self.write()
        self._shut()
        return len(self._owner.waiting)


class _Parts:
    """Numbered objects in a bucket, written by a thread that nobody waits for."""

    def __init__(self, owner: Appender):
        self._owner = owner
        self._part: list[bytes] = []  # of this part, the last `_unsent` of them not yet there
        self._bytes = self._unsent = 0
        self._number = 0  # of the part; 0 before the bucket has said which there are
        self._new, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def write(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="event-log", daemon=True)
            self._thread.start()
        self._new.set()

    def close(self) -> int:
        """Records that are still not written."""
        self._closing.set()
        self._new.set()
        if self._thread is not None:
            self._thread.join(_CLOSE)
        return self._left()

    def _left(self) -> int:
        return len(self._owner.waiting) + self._unsent

    def _work(self) -> None:
        pause = 0.0
        while not self._closing.is_set() or self._left():
            self._new.wait()
            self._closing.wait(pause)  # no pause any more when the run ends
            self._new.clear()
            if not self._left():
                continue
            try:
                self._upload()
            except Exception as error:  # whatever it is: nothing here may end a run
                self._owner.failed(error)
                pause = min(max(2 * pause, _PAUSE), _LONGEST_PAUSE)
                if self._closing.is_set():
                    return
            else:
                self._owner.worked()
                pause = _PAUSE
            if self._left():
                self._new.set()

    def _upload(self) -> None:
        """Writes the part anew with what waits; a large part is the last time."""
        owner = self._owner
        if not self._number:
            self._number = 1 + max((number for number, _ in _parts(owner.path)), default=0)
        with owner.lock:
            while owner.waiting and self._bytes < _PART_BYTES:
                self._part.append(owner.waiting.popleft())
                self._bytes += len(self._part[-1])
                self._unsent += 1
        data = owner.header + b"".join(self._part)
        _part(owner.path, self._number).write_bytes(data)
        self._unsent = 0
        if self._bytes >= _PART_BYTES:
            self._number, self._part, self._bytes = self._number + 1, [], 0


class EventLog:
    """Appends lines to a path; see this file's head."""

    def __init__(self, path: epath.PathLike):
        self._appender = Appender(path, separator=b"\n")

    def append(self, line: str) -> None:
        """Writes a line, with or without its line break; keeps it for later where it cannot."""
        self._appender.append(line.rstrip("\n").encode() + b"\n")

    def close(self) -> None:
        """Tries once more to write what waits."""
        self._appender.close()


def read_lines(path: epath.PathLike) -> Iterator[str]:
    """The lines of a log, in the order written: the file, then the parts; none if nothing is there.

    Raises what the disk or the bucket does.
    """
    opened = open_path(path)
    files = [opened] if opened.exists() else []
    for file in [*files, *(part for _, part in _parts(opened))]:
        yield from file.read_bytes().decode("utf-8", "replace").split("\n")


def _part(path: epath.Path, number: int) -> epath.Path:
    return path.with_name(f"{path.stem}-{number:05d}{path.suffix}")


def _parts(path: epath.Path) -> list[tuple[int, epath.Path]]:
    """Number and path of every part that is there, ascending."""
    name = re.compile(rf"{re.escape(path.stem)}-(\d{{5,}}){re.escape(path.suffix)}")
    try:
        there = [(name.fullmatch(file.name), file) for file in path.parent.iterdir()]
    except FileNotFoundError:
        return []
    return sorted((int(match[1]), file) for match, file in there if match)
