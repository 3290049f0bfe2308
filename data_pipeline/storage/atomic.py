"""Files and folders that appear complete or not at all, also after a loss of power.

A rename alone is not enough: a file system may write the new name to the disk before the content,
and after a power cut the file is there, complete by its name, empty or full of zeros. So the
content is synced before the rename, and the folder that holds the name after it.
"""

import contextlib
import os
from pathlib import Path


def publish(made: os.PathLike | str, target: os.PathLike | str) -> None:
    """Renames a finished file or folder; on return it would survive a loss of power.

    Args:
        made: on the same file system as `target`.
        target: an older file of that name is replaced, an older folder is not.

    Raises:
        OSError: the disk is full or refuses; `made` may still be there.
    """
    sync_tree(made)
    os.replace(made, target)
    sync(os.path.dirname(os.path.abspath(target)))


def write_bytes(path: os.PathLike | str, data: bytes) -> None:
    """Writes a file that has its old content until it has the new one.

    Raises:
        OSError: the disk is full or refuses; the old file is untouched.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        publish(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_text(path: os.PathLike | str, text: str) -> None:
    """`write_bytes` of UTF-8, line breaks as they are."""
    write_bytes(path, text.encode())


def sync_tree(path: os.PathLike | str) -> None:
    """Syncs a file, or everything in a folder and the folders' entries."""
    if not os.path.isdir(path):
        sync(path)
        return
    for below, _, names in os.walk(os.fspath(path)):
        for name in names:
            sync(os.path.join(below, name))
        sync(below)


def sync(path: os.PathLike | str) -> None:
    """Waits until the disk holds a file's content, or a folder's entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
