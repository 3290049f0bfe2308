"""Digests of source files, kept so that a build that resumes does not read all text again."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any, Final

from bert_jax.storage import json_record
from bert_jax.storage.remote import is_remote, put
from bert_jax.storage.versions import HashedFile, Version, hashed, is_seen, note_same, version_of

_NAME: Final = "digests.json"
# A file may change twice within one tick of its time stamps, so one that has just changed is not
# kept (git calls such a file racily clean). Users set the first one, the kernel the second.
_SETTLED: Final = 2.0  # seconds since its modification
_TICK: Final = 0.02  # seconds since the last change of its status


def _is_record(value: Any) -> bool:
    """Returns whether a value is a version and a digest; earlier versions kept the size and one
    time."""
    return any(json_record.has_form(value, (*[int] * count, str)) for count in (2, 4))


class FileDigests:
    """The digests of files by path and version. Threads may share one."""

    def __init__(self, folder: Path) -> None:
        """
        Args:
            folder: where they are kept; it may not exist yet.
        """
        self._file, self._lock, self._changed = folder / _NAME, threading.Lock(), False
        self._kept: dict[str, tuple[Version, str]] = {}
        try:
            for path, (*numbers, digest) in json_record.read_json(
                self._file, {str: _is_record}
            ).items():
                self._kept[path] = Version(*numbers), digest
        except (OSError, ValueError):  # missing or damaged: read again
            pass

    def of(self, path: Path) -> HashedFile:
        """Returns a file with its digest; UserError if it changes meanwhile."""
        if is_remote(path):
            return hashed(path)
        name, version = os.path.abspath(path), version_of(path)
        with self._lock:
            seen, digest = self._kept.get(name, (None, ""))
        if seen and is_seen(path, seen, version):
            return HashedFile(path, digest, version)
        found = hashed(path)
        if seen and seen.status and seen.may_equal(version) and found.digest == digest:
            note_same(path, seen, version)
        if _is_settled(found.version):
            with self._lock:
                self._kept[name] = (found.version, found.digest)
                self._changed = True
        return found

    def save(self) -> None:
        """Writes the digests to their folder if there are new ones; OSError if it cannot."""
        if self._changed:
            kept: dict[str, list[Any]] = {
                path: [*version, digest] for path, (version, digest) in self._kept.items()
            }
            put(self._file, json.dumps(kept).encode())


def _is_settled(version: Version) -> bool:
    now, second = time.time_ns(), 1e9
    modified, status = int(version.written), version.status
    return modified < now - _SETTLED * second and status < now - _TICK * second
