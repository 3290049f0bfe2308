"""Digests of source files, kept so that a build that resumes does not read all text again."""

import hashlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Final

from bert_jax.data_pipeline.storage import json_record
from bert_jax.data_pipeline.storage.digest import file_digest
from bert_jax.data_pipeline.storage.files import checksum, open_bytes
from bert_jax.data_pipeline.storage.remote import is_remote, put

_NAME: Final = "digests.json"
# A file may change twice within one tick of its time stamp, so one that has just changed is not
# kept (git calls such a file racily clean).
_SETTLED: Final = 2.0  # seconds


class FileDigests:
    """The sha256 of local files under path, size and modification time; for an object of a bucket
    the checksum that the bucket keeps. Threads may share one."""

    def __init__(self, folder: Path) -> None:
        """
        Args:
            folder: where they are kept; it may not exist yet.
        """
        self._file, self._lock, self._changed = folder / _NAME, threading.Lock(), False
        try:
            kept = json_record.read(self._file, {str: (int, int, str)}).items()
            self._kept = {path: (size, at, key) for path, (size, at, key) in kept}
        except (OSError, ValueError):  # missing or damaged: read again
            self._kept = dict[str, tuple[int, int, str]]()

    def of(self, path: Path) -> str:
        """Returns the digest of a file's content; raises the errors of its storage."""
        if is_remote(path):
            return checksum(path) or _streamed(path)
        info, name = path.stat(), os.path.abspath(path)
        with self._lock:
            *seen, digest = self._kept.get(name, (-1, -1, ""))
        if seen == [info.st_size, info.st_mtime_ns]:
            return digest
        digest = file_digest(path)
        if info.st_mtime < time.time() - _SETTLED:
            with self._lock:
                self._kept[name] = (info.st_size, info.st_mtime_ns, digest)
                self._changed = True
        return digest

    def save(self) -> None:
        """Writes the digests to their folder if there are new ones; OSError if it cannot."""
        if self._changed:
            put(self._file, json.dumps(self._kept).encode())


def _streamed(path: Path) -> str:
    with open_bytes(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
