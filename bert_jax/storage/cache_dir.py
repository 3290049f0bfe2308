"""The local folder for caches: files that can be recreated."""

import os
import shutil
import tempfile
from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.storage.remote import storage_errors

# Bytes for compiled programs, the plans of an epoch and temporary files. A copy of the store, and
# what an agent installs, are checked with their own sizes.
_NEEDED = 2**30


def cache_dir() -> Path:
    """Returns $BERT_JAX_CACHE, or `bert_jax` in the user's cache folder.

    Raises:
        UserError: the user has no home folder, as in a container that runs as an unknown user.
    """
    if named := os.environ.get("BERT_JAX_CACHE"):
        return Path(named)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "bert_jax"
    try:
        return Path.home() / ".cache" / "bert_jax"
    except RuntimeError:
        raise UserError(
            "no home folder for plans and compiled programs; set BERT_JAX_CACHE to a folder"
        ) from None


def check_room() -> str:
    """Returns a line on the disk of the caches; UserError if it is nearly full or cannot be written
    to, or a file is where the folder would be."""
    folder = cache_dir()
    disk = next(path for path in (folder, *folder.parents) if path.exists())
    if not disk.is_dir():
        raise UserError(f"{disk}: a file; set BERT_JAX_CACHE to a folder")
    # Before its room, which is none where nothing can be written, as in /proc.
    with (
        storage_errors(folder, "cannot be written", "; set BERT_JAX_CACHE to a folder of yours"),
        tempfile.TemporaryFile(dir=disk),
    ):
        pass
    free = shutil.disk_usage(disk).free
    if free < _NEEDED:
        raise UserError(
            f"{folder}: {free / 1e9:.1f} GB free, {_NEEDED / 1e9:.1f} needed for compiled programs "
            "and plans; free some space there, or set BERT_JAX_CACHE to a folder on another disk"
        )
    return f"{folder}: {free / 1e9:.1f} GB free"
