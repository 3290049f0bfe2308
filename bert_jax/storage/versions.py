"""Versions of files: a file that was hashed is still the same when it is read.

A version is the size, times and inode of a local file, or the size and generation of an object. If
only the time of a file's status or its inode differ, as after a chmod, a backup by hard links or on
another host, the content may be the same: its digest is computed once more, and decides.
"""

import hashlib
import io
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from etils import epath

from bert_jax.errors import UserError
from bert_jax.storage.read_files import object_info, open_bytes, size_of
from bert_jax.storage.regular_file import read_stream
from bert_jax.storage.remote import is_remote, storage_errors

_log = logging.getLogger(__name__)

_PARALLEL: Final = 16  # requests to a bucket
# Files of the same content of which the inode alone changed: not every file system has stable ones,
# so that it is not compared again.
_unstable: set[str] = set()


class Version(NamedTuple):
    """The version of a file: `written` is its time of modification in ns, or an object's generation
    or ETag; its content may be the same where `status`, a time in ns, or `inode` differ."""

    size: int
    written: int | str
    status: int = 0
    inode: int = 0

    def may_equal(self, other: "Version") -> bool:
        """Returns whether the content may be the same: an object's if the bucket says so."""
        if isinstance(self.written, str):
            return self.size == other.size
        return self[:2] == other[:2]


@dataclass(frozen=True)
class HashedFile:
    """A file with the digest of its content: a sha256, or the checksum that a bucket keeps."""

    path: Path
    digest: str
    version: Version

    def checked(self) -> "HashedFile":
        """Returns the file with its version of now; UserError if its content is another."""
        with storage_errors(self.path):
            now = version_of(self.path)
            if is_seen(self.path, self.version, now):
                return self
            again = hashed(self.path) if now.may_equal(self.version) else None
        if again is None or again.digest != self.digest:
            raise changed(self.path)
        note_same(self.path, self.version, now)
        return again


def version_of(path: epath.PathLike) -> Version:
    """Returns the version of a file or an object; raises the errors of its storage."""
    if is_remote(path):
        return Version(*object_info(path)[:2])
    return _version(os.stat(path))


def _version_open(path: epath.PathLike, stream: BinaryIO) -> Version:
    """Returns the version of a file that is open, which may have another one's name by now."""
    return version_of(path) if is_remote(path) else _version(os.fstat(stream.fileno()))


def is_seen(path: epath.PathLike, seen: Version, now: Version) -> bool:
    """Returns whether a file has a version that was seen before."""
    if os.fspath(path) in _unstable:
        now = now._replace(inode=seen.inode)
    return now == seen


def note_same(path: epath.PathLike, seen: Version, now: Version) -> None:
    """Says that the content of a file was compared, since its version could not decide."""
    if seen[:3] == now[:3]:
        _unstable.add(os.fspath(path))
    _log.info(
        f"{os.fspath(path)}: its status changed (permissions, links, another host), its content "
        "is the same"
    )


def _version(info: os.stat_result) -> Version:
    return Version(info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)


def hashed(path: Path) -> HashedFile:
    """Returns a file with its digest; UserError if it changes meanwhile, or storage's errors."""
    if is_remote(path) and (info := object_info(path)).checksum:
        return HashedFile(path, info.checksum, Version(*info[:2]))
    with open_bytes(path) as stream:
        before = _version_open(path, stream)
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if _version_open(path, stream) != before:
            raise changed(path)
    return HashedFile(path, digest, before)


def check_all(files: Iterable[HashedFile]) -> tuple[HashedFile, ...]:
    """Returns `checked` of each file."""
    files = tuple(files)
    if not any(is_remote(file.path) for file in files):
        return tuple(file.checked() for file in files)
    with ThreadPoolExecutor(_PARALLEL) as pool:
        return tuple(pool.map(HashedFile.checked, files))


@contextmanager
def unchanged(paths: Iterable[Path]) -> Iterator[None]:
    """Raises UserError if one of the files, which are few and small, has other content at the end.

    For libraries that open files themselves; otherwise `opened_once` hashes what is read.
    """
    files = []
    for path in paths:
        with storage_errors(path):
            files.append(hashed(path))
    yield
    check_all(files)


@contextmanager
def opened_once(path: epath.PathLike) -> Iterator[io.BufferedReader]:
    """Opens a file for reading from its start to its end; UserError if it changes meanwhile.

    What is read is hashed, so that the digest can decide where the version cannot.
    """
    with open_bytes(path) as file:
        before, digest = _version_open(path, file), hashlib.sha256()
        yield io.BufferedReader(_Hashing(file, digest.update))
    now = version_of(path)
    if is_seen(path, before, now):
        return
    with open_bytes(path) as file:
        same = hashlib.file_digest(file, "sha256").hexdigest() == digest.hexdigest()
    if not (same and now.may_equal(before)):
        raise changed(path)
    note_same(path, before, now)


def read_once(path: epath.PathLike, limit: int) -> bytes:
    """Returns the bytes of a file; UserError if it changes meanwhile, UnfitFileError if it has more
    than `limit`."""
    with opened_once(path) as stream:
        return read_stream(stream, path, size_of(path), limit)


class _Hashing(io.RawIOBase):
    """A stream that passes on what is read."""

    def __init__(self, file: BinaryIO, update: Callable[[bytes], None]) -> None:
        self._file, self._update = file, update

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._update(data)
        return len(data)


def changed(path: epath.PathLike) -> UserError:
    """Returns the error for a file that is not what it was when it was hashed."""
    return UserError(
        f"{os.fspath(path)}: changed while it was in use; run the same command again when nothing "
        "writes to it"
    )
