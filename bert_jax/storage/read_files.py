"""Files to read, local or in a bucket: size, bytes, checksum, the files of a folder."""

import functools
import io
import os
import shlex
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from etils import epath

from bert_jax.errors import UserError
from bert_jax.storage.regular_file import RECORD, open_regular, read_regular, read_stream
from bert_jax.storage.remote import (
    STORAGE_RETRIES,
    check_protocol,
    file_system,
    is_remote,
    open_path,
)
from bert_jax.storage.retry import retry

_BUFFER: Final = 1 << 16  # bytes of a request to a bucket that reads a few places of a file
_CHECKSUMS: Final = ("md5Hash", "crc32c")  # composed objects have no MD5
_GENERATIONS: Final = ("generation", "etag", "ETag")


def local_path(path: epath.PathLike) -> Path:
    """Returns the path of what is read from a local disk alone; UserError if it is in a bucket."""
    text = os.fspath(path)
    if not is_remote(text):
        return Path(text)
    check_protocol(text)
    copy = shlex.join(("gcloud", "storage", "cp", "--recursive", text, "."))
    raise UserError(f"{text}: is read from a local disk; copy it, and give the copy: {copy}")


def path_of(text: str) -> Path:
    """Returns a local path, or one in a bucket, which has the same methods except `stat`."""
    return cast("Path", open_path(text)) if is_remote(text) else Path(text)


def size_of(path: epath.PathLike) -> int:
    """Returns the bytes of a file."""
    return int(_info(path)["size"]) if is_remote(path) else os.stat(path).st_size


class ObjectInfo(NamedTuple):
    """Metadata of an object in a bucket: size in bytes; generation, or else the ETag, which every
    write changes; and the checksum that the bucket keeps, with its name, "" if it keeps none."""

    size: int
    generation: str
    checksum: str


def object_info(path: epath.PathLike) -> ObjectInfo:
    """Returns the metadata of an object, in one request."""
    info = _info(path)
    kept = [f"{name}:{info[name]}:{info['size']}" for name in _CHECKSUMS if info.get(name)]
    written = [str(info[name]) for name in _GENERATIONS if info.get(name)]
    return ObjectInfo(int(info["size"]), next(iter(written), ""), next(iter(kept), ""))


def open_bytes(path: epath.PathLike, *, ahead: bool = True) -> io.BufferedReader:
    """Opens a file for reading, from any position on; UnfitFileError for a pipe or a device.

    Args:
        ahead: read an object of a bucket in large blocks, for reading much of it.
    """
    if not is_remote(path):
        return cast(io.BufferedReader, open_regular(path))
    system, url = file_system(path)
    cache = "readahead" if ahead else "none"
    stream = retry(lambda: system.open(url, "rb", cache_type=cache), STORAGE_RETRIES)
    return io.BufferedReader(stream, _BUFFER)


def read_bytes(path: epath.PathLike, limit: int = RECORD) -> bytes:
    """Returns the content of a file, local or in a bucket.

    Raises:
        UnfitFileError: it is not a regular file, or has more than `limit` bytes.
        Exception: the errors of its storage, see `storage_errors`.
    """
    if not is_remote(path):
        return read_regular(path, limit)
    return retry(functools.partial(_download, path, limit), STORAGE_RETRIES)


def _download(path: epath.PathLike, limit: int) -> bytes:
    system, url = file_system(path)
    with system.open(url, "rb", cache_type="readahead") as stream:
        return read_stream(stream, path, int(stream.size), limit)


def objects(folder: epath.PathLike) -> dict[str, int]:
    """Returns the bytes of every object below a folder of a bucket, by its name from there on; of
    an object itself under the name ""."""
    system, url = file_system(folder)
    top = url.partition("://")[2].rstrip("/")
    found = retry(lambda: system.find(url, detail=True), STORAGE_RETRIES)
    return {
        name.removeprefix(top).removeprefix("/"): int(info["size"])
        for name, info in sorted(found.items())
        if not name.endswith("/")  # what consoles write for an empty folder
    }


def _info(path: epath.PathLike) -> dict[str, Any]:
    system, url = file_system(path)
    return dict(retry(lambda: system.info(url), STORAGE_RETRIES))
