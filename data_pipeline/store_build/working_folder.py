"""Working folders that a command may fill and delete; a marker file shows that it owns them.

A folder with the marker is ours. A missing or empty folder is free: the marker is written and
synced to disk before anything else, so a folder without it is never one of ours.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bert_jax.errors import UserError
from bert_jax.storage.atomic import sync
from bert_jax.storage.locks import FileLock, LockedError

MARK: Final = ".made-by-bert-jax"
_LOCK: Final = "lock"


def is_free(path: Path) -> bool:
    """Returns whether a path is available: it does not exist, or is an empty folder."""
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
    """Returns whether a folder has the marker file."""
    return not folder.is_symlink() and (folder / MARK).is_file()


def claim(folder: Path) -> None:
    """Creates a folder of ours, with its parents.

    Raises:
        UserError: the path exists without the marker; it was not changed.
        OSError: the folder cannot be created.
    """
    if is_ours(folder):
        return
    if not is_free(folder) and not is_ours(folder):  # another process may have just claimed it
        raise UserError(
            f"{folder}: exists, but was not created by bert-jax (no {MARK} in it); "
            "move it away, or choose another --out or --work"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text("This folder may be removed while no bert-jax command runs.\n")
    sync(folder / MARK)
    sync(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder of ours; the operating system releases the lock when this process ends.

    Raises:
        UserError: another process holds the lock.
    """
    with FileLock(folder / _LOCK) as lock:
        try:
            lock.acquire()
        except LockedError:
            raise UserError(f"{folder}: another build is running; wait until it ends") from None
        yield
