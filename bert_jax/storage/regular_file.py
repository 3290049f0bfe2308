"""Opens local files for reading, and only regular ones: opening or reading a pipe waits for a
writer, and a device such as /dev/zero never ends.

A file that is read as a whole has a limit, so that a wrong path does not fill the memory.
"""

import errno
import io
import os
import stat
from typing import Any, Final

from etils import epath

from bert_jax.errors import UserError

RECORD: Final = 1 << 26  # bytes of a JSON record, or another small file
TOKENIZER: Final = 1 << 28  # bytes of a tokenizer's files
_PIECE: Final = 1 << 16


class UnfitFileError(UserError, OSError):
    """A path is no regular file, or the file is larger than any of its kind."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def unfit(path: epath.PathLike, reason: str) -> UnfitFileError:
    return UnfitFileError(errno.EINVAL, reason, os.fspath(path))


def too_large(path: epath.PathLike, limit: int) -> UnfitFileError:
    return unfit(path, f"has more than {limit:,} bytes, as no such file has; give another")


def check_regular(path: epath.PathLike) -> None:
    """Raises UnfitFileError for a pipe, a socket or a device; OSError for a path that does not
    exist."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # `open` rejects folders with their errno
        raise unfit(path, "not a regular file; give the path of one")


def check_not_special(path: epath.PathLike) -> None:
    """Raises UnfitFileError as `check_regular`; a path that does not exist passes. It is called
    before a message that there is no such file."""
    if os.path.exists(path):
        check_regular(path)


def open_regular(path: epath.PathLike, mode: str = "rb", **more: Any) -> Any:
    """Opens a file for reading as `open` does.

    Raises:
        UnfitFileError: it is a pipe, a socket or a device.
        OSError: it cannot be opened.
    """

    def opener(name: str, flags: int) -> int:
        check_regular(name)
        return os.open(name, flags | os.O_NONBLOCK)  # if it has become a pipe since

    return open(path, mode, opener=opener, **more)


def read_stream(stream: io.BufferedIOBase, path: epath.PathLike, size: int, limit: int) -> bytes:
    """Returns the content of an open file.

    Args:
        size: of the file in bytes as far as is known; it may grow.
        limit: the most bytes that it may have.

    Raises:
        UnfitFileError: it has more.
    """
    if size > limit:
        raise too_large(path, limit)
    pieces, left = list[bytes](), limit + 1
    while left and (piece := stream.read(min(left, max(size + 1, _PIECE)))):
        pieces.append(piece)
        left -= len(piece)
    if not left:
        raise too_large(path, limit)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_regular(path: epath.PathLike, limit: int = RECORD) -> bytes:
    """Returns the content of a local file.

    Raises:
        UnfitFileError: it is not a regular file, or has more than `limit` bytes.
        OSError: it cannot be read.
    """
    with open_regular(path) as stream:
        return read_stream(stream, path, os.fstat(stream.fileno()).st_size, limit)
