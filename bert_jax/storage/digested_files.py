"""A cache of files, each with a digest of its key and its content at its start.

For caches of machine code: a damaged file, or one that was renamed, must not be run, and one that
another user may have written must not be read. `get` returns exactly what `put` wrote or nothing;
`own_folder` is a folder that only this user can write to.
"""

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from bert_jax.storage import atomic
from bert_jax.storage.regular_file import read_regular

MOST_BYTES = 4 * 2**30
_DIGEST = hashlib.sha256().digest_size
_SHARE = 8  # a process fills an eighth of the free room before it counts again; others write, too
_END = ".digested"  # of names; the files of earlier versions are without


def own_folder(root: Path, name: str) -> Path:
    """Returns the folder `root/name`; creates it with mode 700 if it is missing.

    Raises:
        PermissionError: `root` or the folder belongs to another user, or others may write to it.
        OSError: it cannot be created or written to.
    """
    folder = root / name
    root.parent.mkdir(parents=True, exist_ok=True)
    for path in (root, folder):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        info = path.stat()
        if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(0, "others could write programs there; make it yours, mode 700")
    with tempfile.TemporaryFile(dir=folder):
        return folder


class DigestedFiles:
    """A key-value cache stored as files in a folder. `get` and `put` raise no OSError.

    Several threads and processes may use the same folder.
    """

    def __init__(
        self, folder: Path, warn: Callable[[str], None], most_bytes: int = MOST_BYTES
    ) -> None:
        """
        Args:
            warn: called once with the reason when a file cannot be written; no later write is
                attempted.
            most_bytes: limit for this folder and its siblings together; the least recently used
                files are removed first.
        """
        self._path, self._warn, self._most_bytes = folder, warn, most_bytes
        self._writable = True
        self._free = 0  # bytes to write before the folders are counted again

    def path_of(self, key: str) -> Path:
        """Returns the file of a key."""
        return self._path / f"{key}{_END}"

    def get(self, key: str) -> bytes | None:
        """Returns the content of a key, or None if it is missing. Removes a damaged file."""
        path = self.path_of(key)
        try:
            data = read_regular(path, self._most_bytes)
            digest, content = data[:_DIGEST], data[_DIGEST:]
            if digest == _digest(key, content):
                os.utime(path)
                return content
            path.unlink()
        except OSError:
            return None
        return None

    def put(self, key: str, content: bytes) -> None:
        """Stores a content under a key."""
        if not self._writable:
            return
        data = _digest(key, content) + content
        try:
            if len(data) > self._free:
                self._free = len(data) + self._make_room(len(data)) // _SHARE
            atomic.write_bytes(self.path_of(key), data)
            self._free -= len(data)
        except OSError as error:
            self._writable = False
            self._warn(error.strerror or str(error))

    def _make_room(self, more: int) -> int:
        """Removes the least recently used files; another process may be doing the same.

        Returns the bytes that are free beside `more`; below zero if `more` is above the limit.
        """
        stored = []
        for path in self._path.parent.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                info = path.stat()
                if stat.S_ISREG(info.st_mode):
                    stored.append((info.st_mtime, info.st_size, path))
        room = self._most_bytes - more - sum(size for _, size, _ in stored)
        for _, size, path in sorted(stored):
            if room >= 0:
                break
            path.unlink(missing_ok=True)
            room += size
        return room


def _digest(key: str, content: bytes) -> bytes:
    named = key.encode()
    return hashlib.sha256(b"%d:%b%b" % (len(named), named, content)).digest()
