"""Copies of objects of a bucket in the local cache, for what can read only local files.

    $BERT_JAX_CACHE/sources/<digest of the objects' names and checksums>/    the files
                            <digest>.lock

One process per machine copies, the others wait for it.
"""

import base64
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bert_jax.errors import UserError
from bert_jax.storage.cache_dir import cache_dir
from bert_jax.storage.digest import json_digest
from bert_jax.storage.locks import FileLock
from bert_jax.storage.read_files import ObjectInfo, object_info, open_bytes
from bert_jax.storage.remote import is_remote, storage_errors
from bert_jax.storage.versions import changed

_PART: Final = ".part"
_PIECE: Final = 1 << 22  # bytes


def local_folder(paths: Sequence[Path], top: Path | None = None) -> Path:
    """Returns a local folder that has these files under their names.

    Args:
        top: the folder that they are in or below; by default that of the first.

    Raises:
        UserError: an object cannot be read, or changes meanwhile, or a copy cannot be written.
    """
    top = top or paths[0].parent
    if not is_remote(top):
        return top
    with storage_errors(top):
        infos = {path: object_info(path) for path in paths}
    contents = [[os.fspath(path), info.checksum or list(info)] for path, info in infos.items()]
    folder = cache_dir() / "sources" / json_digest(contents)
    remedy = "; free some space or grant access, or set BERT_JAX_CACHE to another folder"
    with storage_errors(folder, "cannot be written", remedy):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")) as lock:
            lock.acquire(wait=True)
            for path in paths:
                copy = folder / path.relative_to(top)
                if not copy.exists():
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    _copy(path, infos[path], copy)
    return folder


def _copy(path: Path, info: ObjectInfo, to: Path) -> None:
    part = to.with_name(to.name + _PART)
    kind, *kept = info.checksum.split(":")
    found: Any = hashlib.md5()
    if kind == "crc32c":
        from google_crc32c import Checksum

        found = Checksum()
    with storage_errors(path), open_bytes(path) as stream, part.open("wb") as file:
        while piece := stream.read(_PIECE):
            file.write(piece)
            found.update(piece)
        if object_info(path) != info:  # the folder is named by what was there before
            raise changed(path)
    if kept and kept[0] != base64.b64encode(found.digest()).decode():
        raise UserError(f"{path}: arrived damaged; run the same command again")
    part.rename(to)
