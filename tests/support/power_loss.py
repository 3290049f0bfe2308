"""A folder on a disk that loses, when the power goes, whatever was not synced.

    with watched(folder, cut_before=7) as disk:   # the power goes before the 7th sync or rename
        work(folder)
    disk.lose("all")                              # the folder as it would be found afterwards

Two disks are played, and a writer has to stand both. "all": names reached the disk and contents did
not, as on ext4 with delayed allocation; a file has the content of its last sync, none where it
was never synced. "synced": names too are those of the last sync of their folder.

Only this process is watched (threads are, other processes are not), and what Python syncs.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from unittest import mock

Names = Literal["all", "synced"]
NAMES: tuple[Names, ...] = ("all", "synced")
_Tree = dict[str, bytes | None]  # path -> content, None for a folder


class PowerCutError(BaseException):
    """The power is gone; nobody catches this."""


class Disk:
    """What has reached the disk below a folder; see the module."""

    def __init__(self, root: Path, cut_before: int | None) -> None:
        self.events = 0  # syncs and renames
        self._root, self._cut_before = Path(os.path.realpath(root)), cut_before
        self._contents: dict[int, bytes] = {}  # by inode
        self._entries: dict[int, dict[str, int]] = {}
        self._folders: set[int] = set()
        self._held: list[int] = []  # open, so that no inode is used for another file
        self._found: dict[Names, _Tree] = {}
        for folder, _, names in os.walk(self._root):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                handle = os.open(path, os.O_RDONLY)
                self._remember(handle)
                os.close(handle)

    def lose(self, names: Names) -> None:
        """Leaves below the folder what would be found after the power came back."""
        for path in self._root.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        for name, content in self._found[names].items():
            path = self._root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir(exist_ok=True)
            else:
                path.write_bytes(content)

    def before(self, *paths: Any) -> None:
        """Called before a sync or a rename."""
        if not any(os.path.realpath(path).startswith(str(self._root)) for path in paths):
            return
        if self.events == self._cut_before:
            self.cut()
            raise PowerCutError
        self.events += 1

    def synced(self, handle: int) -> None:
        """Called after the sync of a file or a folder."""
        if os.readlink(f"/proc/self/fd/{handle}").startswith(str(self._root)):
            self._remember(handle)

    def cut(self) -> None:
        """The power goes: what has reached the disk so far is what will be found."""
        if not self._found:
            self._found = {"all": self._with_all_names(), "synced": {}}
            self._add(self._root.stat().st_ino, "", self._found["synced"])

    def close(self) -> None:
        for handle in self._held:
            os.close(handle)

    def _remember(self, handle: int) -> None:
        status = os.fstat(handle)
        self._held.append(os.dup(handle))
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(handle) as entries:
                found = list(entries)
            self._entries[status.st_ino] = {entry.name: entry.inode() for entry in found}
            self._folders |= {e.inode() for e in found if e.is_dir(follow_symlinks=False)}
        elif stat.S_ISREG(status.st_mode):
            with open(f"/proc/self/fd/{handle}", "rb") as stream:
                self._contents[status.st_ino] = stream.read()

    def _with_all_names(self) -> _Tree:
        tree: _Tree = {}
        for folder, folders, names in os.walk(self._root):
            for name in folders:
                tree[os.path.relpath(os.path.join(folder, name), self._root)] = None
            for name in names:
                path = os.path.join(folder, name)
                content = self._contents.get(os.stat(path).st_ino, b"")
                tree[os.path.relpath(path, self._root)] = content
        return tree

    def _add(self, folder: int, path: str, tree: _Tree) -> None:
        for name, inode in self._entries.get(folder, {}).items():
            below = os.path.join(path, name)
            if inode in self._folders:
                tree[below] = None
                self._add(inode, below, tree)
            else:
                tree[below] = self._contents.get(inode, b"")


@contextmanager
def watched(root: Path, cut_before: int | None = None) -> Iterator[Disk]:
    """Watches what is done below a folder; what is there already has reached the disk.

    Args:
        cut_before: the sync or rename before which the power goes, from 0; at the end by default.
    """
    disk = Disk(root, cut_before)
    sync, renames = os.fsync, {name: getattr(os, name) for name in ("rename", "replace")}

    def synced(file: Any) -> None:
        handle = file if isinstance(file, int) else file.fileno()
        disk.before(f"/proc/self/fd/{handle}")
        sync(handle)
        disk.synced(handle)

    def renaming(name: str) -> Any:
        def renamed(source: Any, target: Any, **options: Any) -> None:
            disk.before(source, target)
            renames[name](source, target, **options)

        return renamed

    try:
        with (
            mock.patch.object(os, "fsync", synced),
            mock.patch.object(os, "fdatasync", synced),
            mock.patch.object(os, "rename", renaming("rename")),
            mock.patch.object(os, "replace", renaming("replace")),
        ):
            yield disk
    except PowerCutError:
        pass
    finally:
        disk.cut()
        disk.close()
