"""Copies the output of a host's processes to the bucket, in pieces that never change.

A process writes to a file of its own on the host's disk. A piece is named by the position of its
first byte in that file, so an agent that is started again continues where the last piece ends: no
byte is lost or written twice, as long as the disk is there.
"""

import contextlib
import os
import re
import time
from pathlib import Path

from bert_jax.launch.tpu.bucket import Bucket

_MOST = 2**20  # bytes per piece
_EVERY = 5.0  # seconds between pieces, while there are fewer bytes
_PROGRESS = re.compile(rb"step \d+/\d+.*")  # a line of training/progress.py
_TAIL = 2**14  # bytes in which the last such line is looked for


class LogFile:
    """The output of one attempt on this host, and its pieces in the bucket."""

    def __init__(self, path: Path, bucket: Bucket, name: str):
        """path: the file. name: of its pieces in the bucket, before their position."""
        self.path, self._bucket, self._name = path, bucket, name
        self._copied: int | None = None  # bytes; unknown before the first copy
        self._next = 0.0  # when the next piece is due
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def open(self) -> int:
        """Returns a descriptor that appends to the file."""
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def copy(self, *, all: bool = False) -> None:
        """Copies what is new: complete lines, if a piece is due; everything if `all`.

        Raises:
            BucketError: the bucket does not take it; the next call continues.
        """
        if self._copied is None:
            pieces = self._bucket.list(f"{self._name}-")
            last = pieces[-1] if pieces else None
            self._copied = int(last.name.rpartition("-")[2]) + last.size if last else 0
        while waiting := self.path.stat().st_size - self._copied:
            if not all and waiting < _MOST and time.monotonic() < self._next:
                return
            with self.path.open("rb") as file:
                file.seek(self._copied)
                data = file.read(_MOST)
            if not all:
                data = data[: data.rfind(b"\n") + 1] or (data if len(data) == _MOST else b"")
            if not data:
                return
            name = f"{self._name}-{self._copied:012d}"
            if not self._bucket.write(name, data, new=True):
                # Written by a call that did not learn of it, with fewer bytes.
                data = self._bucket.read(name) or b""
            self._copied += len(data)
            self._next = time.monotonic() + _EVERY

    def progress(self) -> str:
        """Returns the last line of progress, "" if there is none."""
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            file.seek(max(self.path.stat().st_size - _TAIL, 0))
            lines = _PROGRESS.findall(file.read())
            return lines[-1].decode(errors="replace") if lines else ""
        return ""
