"""Folders that a command fills and empties as it likes, and how it knows that they are its own.

A folder with the mark is ours. An absent or empty one is free: it gets the mark before anything
else, on the disk too, so that a folder without it is never one of ours that lost it.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.storage.atomic import sync

MARK: Final = ".made-by-bert-jax"
_LOCK: Final = "lock"


def is_free(path: Path) -> bool:
    """Whether a folder may take this path: nothing, or an empty folder, is there."""
    if not os.path.lexists(path):
        return True
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


def remove(path: Path) -> None:
    """Removes a folder, a file or a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def is_ours(folder: Path) -> bool:
    """Whether a folder has the mark."""
    return not folder.is_symlink() and (folder / MARK).is_file()


def claim(folder: Path) -> None:
    """Makes a folder ours, with the folders above it.

    Raises:
        UserError: something without the mark is there; nothing of it was touched.
        OSError: the folder cannot be made.
    """
    if is_ours(folder):
        return
    if not is_free(folder):
        raise UserError(
            f"{folder}: would be used and removed, but is not known to be ours (no {MARK} in it); "
            "move it away, or choose another --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text("This folder may be removed while no bert-jax command runs.\n")
    sync(folder / MARK)
    sync(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a folder of ours; the system lets go of the lock when this process ends.

    Raises:
        UserError: another process holds it.
    """
    with (folder / _LOCK).open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{folder}: another build is running there; wait for it") from None
        yield
