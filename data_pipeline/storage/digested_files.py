"""Files that can be made again, each with a digest of its content before it.

For caches of machine code: a damaged file must not be run, and one that somebody else may have
written must not be read. `get` gives what `put` wrote or nothing; `own_folder` is a folder into
which nobody else can write.
"""

import contextlib
import hashlib
import os
import stat
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

from bert_jax.data_pipeline.storage.atomic import publish

MOST_BYTES = 4 * 2**30
_DIGEST = hashlib.sha256().digest_size


def own_folder(root: Path, name: str) -> Path:
    """The folder `root/name`, made with mode 700 where it is missing.

    Raises:
        PermissionError: `root` or the folder belongs to another user, or others may write to it.
        OSError: it cannot be made or written to.
    """
    folder = root / name
    root.parent.mkdir(parents=True, exist_ok=True)
    for path in (root, folder):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.stat()
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(0, "others could put programs there; let it be yours, mode 700")
    with tempfile.TemporaryFile(dir=folder):
        return folder


class DigestedFiles:
    """Contents by key, as files of a folder. No method raises because of what the disk does.

    Several threads and processes may use the same folder.
    """

    def __init__(
        self, folder: Path, tell: Callable[[str], None], most_bytes: int = MOST_BYTES
    ) -> None:
        """
        Args:
            tell: called once with the reason when a file cannot be written; none is tried after.
            most_bytes: of this folder and of those beside it; what was not used for longest goes.
        """
        self._path, self._tell, self._most_bytes = folder, tell, most_bytes
        self._writes = True

    def get(self, key: str) -> bytes | None:
        """The content; None where there is none. A damaged file is removed."""
        path = self._path / key
        try:
            data = path.read_bytes()
            digest, content = data[:_DIGEST], data[_DIGEST:]
            if digest == hashlib.sha256(content).digest():
                os.utime(path)
                return content
            path.unlink()
        except OSError:
            return None
        return None

    def put(self, key: str, content: bytes) -> None:
        """Keeps a content under a key."""
        if not self._writes:
            return
        part = self._path / f".{uuid.uuid4().hex}"
        try:
            self._make_room(len(content))
            part.write_bytes(hashlib.sha256(content).digest() + content)
            publish(part, self._path / key)
        except OSError as error:
            self._writes = False
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            self._tell(error.strerror or str(error))

    def _make_room(self, more: int) -> None:
        """Removes what was not used for longest; another process may be doing the same."""
        kept = []
        for path in self._path.parent.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                if stat.S_ISREG(found.st_mode):
                    kept.append((found.st_mtime, found.st_size, path))
        room = self._most_bytes - more - sum(size for _, size, _ in kept)
        for _, size, path in sorted(kept):
            if room >= 0:
                return
            path.unlink(missing_ok=True)
            room += size
