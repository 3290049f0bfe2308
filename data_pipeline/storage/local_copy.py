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

from bert_jax.data_pipeline.storage.cache_dir import cache_dir
from bert_jax.data_pipeline.storage.digest import json_digest
from bert_jax.data_pipeline.storage.files import checksum, open_bytes, size_of
from bert_jax.data_pipeline.storage.locks import FileLock
from bert_jax.data_pipeline.storage.remote import is_remote, storage_errors

_PART: Final = ".part"
_PIECE: Final = 1 << 22  # bytes


def local_folder(paths: Sequence[Path]) -> Path:
    """Returns a local folder that has these files of one folder under their names.

    Raises:
        UserError: an object cannot be read, or a copy cannot be written.
    """
    if not is_remote(paths[0]):
        return paths[0].parent
    with storage_errors(paths[0].parent):
        contents = [[os.fspath(path), checksum(path) or size_of(path)] for path in paths]
    folder = cache_dir() / "sources" / json_digest(contents)
    remedy = "; free some space or grant access, or set BERT_JAX_CACHE to another folder"
    with storage_errors(folder, "cannot be written", remedy):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")) as lock:
            lock.acquire(wait=True)
            for path in paths:
                if not (folder / path.name).exists():
                    _copy(path, folder / path.name)
    return folder


def _copy(path: Path, to: Path) -> None:
    part = to.with_name(to.name + _PART)
    with storage_errors(path), open_bytes(path) as stream, part.open("wb") as file:
        shutil.copyfileobj(stream, file, _PIECE)
    part.rename(to)
