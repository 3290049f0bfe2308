"""Atomic writes: files and folders appear complete or not at all, even after a power failure.

A rename alone is not enough: a file system may write the new name to disk before the content;
after a power failure the file then exists under its final name, but empty or full of zeros. So the
content is synced before the rename, and the parent folder after it.
"""

import contextlib
import os
import secrets
from pathlib import Path


def publish(made: os.PathLike | str, target: os.PathLike | str) -> None:
    """Renames a finished file or folder; once it returns, the result survives a power failure.

    Args:
        made: path on the same file system as `target`.
        target: an existing file is replaced, an existing folder is not.

    Raises:
        OSError: the disk is full or rejects the write; `made` may still exist.
    """
    sync_tree(made)
    os.replace(made, target)
    sync(os.path.dirname(os.path.abspath(target)))


def write_bytes(path: os.PathLike | str, data: bytes) -> None:
    """Writes a file atomically: it has either its old or its new content.

    Raises:
        OSError: the disk is full or rejects the write; the old file is unchanged.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.randbits(63)}.tmp")
    try:
        temporary.write_bytes(data)
        publish(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_text(path: os.PathLike | str, text: str) -> None:
    """Writes text as UTF-8 like `write_bytes`, without converting line breaks."""
    write_bytes(path, text.encode())


def sync_tree(path: os.PathLike | str) -> None:
    """Syncs a file, or a folder with all files and folders below it."""
    if not os.path.isdir(path):
        sync(path)
        return
    for below, _, names in os.walk(os.fspath(path)):
        for name in names:
            sync(os.path.join(below, name))
        sync(below)


def sync(path: os.PathLike | str) -> None:
    """Waits until a file's content, or a folder's entries, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
