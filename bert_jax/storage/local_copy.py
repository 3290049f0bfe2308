"""Copies of objects of a bucket in the local cache, for libraries that can read only local files.

    $BERT_JAX_CACHE/sources/<digest of the objects' names and checksums>/    the files
                            <digest>.lock

One process per machine copies, the others wait for it.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bert_jax.storage.cache_dir import cache_dir
from bert_jax.storage.digest import json_digest
from bert_jax.storage.files import ObjectInfo, object_info, open_bytes
from bert_jax.storage.locks import FileLock
from bert_jax.storage.remote import is_remote, storage_errors
from bert_jax.storage.versions import changed

_PART: Final = ".part"
_PIECE: Final = 1 << 22  # bytes


def local_folder(paths: Sequence[Path]) -> Path:
    """Returns a local folder that has these files of one folder under their names.

    Raises:
        UserError: an object cannot be read, or changes meanwhile, or a copy cannot be written.
    """
    if not is_remote(paths[0]):
        return paths[0].parent
    with storage_errors(paths[0].parent):
        infos = {path: object_info(path) for path in paths}
    contents = [[os.fspath(path), info.checksum or list(info)] for path, info in infos.items()]
    folder = cache_dir() / "sources" / json_digest(contents)
    remedy = "; free some space or grant access, or set BERT_JAX_CACHE to another folder"
    with storage_errors(folder, "cannot be written", remedy):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")) as lock:
            lock.acquire(wait=True)
            for path in paths:
                if not (folder / path.name).exists():
                    _copy(path, infos[path], folder / path.name)
    return folder


def _copy(path: Path, info: ObjectInfo, to: Path) -> None:
    part = to.with_name(to.name + _PART)
    with storage_errors(path), open_bytes(path) as stream, part.open("wb") as file:
        shutil.copyfileobj(stream, file, _PIECE)
        if object_info(path) != info:  # the folder is named by what was there before
            raise changed(path)
    part.rename(to)
