"""Reads files of several compressed streams, as multistream dumps are, to their very end."""

import bz2
import io
import lzma
from collections.abc import Callable
from typing import Any, BinaryIO, Final, cast

_CHUNK: Final = 1 << 16


class _Streams(io.RawIOBase):
    """The text of all streams. `bz2.open` and `lzma.open` end without an error where a stream is
    none, and so lose the rest of a damaged file; here that is an error of the decompressor."""

    def __init__(self, file: BinaryIO, new: Callable[[], Any]) -> None:
        self._file, self._new = file, new
        self._stream = new()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while True:
            data = b""
            if self._stream.eof:
                rest = self._stream.unused_data.lstrip(b"\0") or self._file.read(_CHUNK)
                if not rest:
                    return 0
                self._stream = self._new()
            elif self._stream.needs_input:
                rest = self._file.read(_CHUNK)
                if not rest:
                    raise EOFError("it ends before its last stream does")
            else:
                rest = b""
            data = self._stream.decompress(rest, len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)


def open_bz2(file: BinaryIO, mode: str = "rb") -> BinaryIO:
    """Opens a .bz2 file for reading its text; OSError where it is damaged, EOFError where it is cut
    off."""
    return cast(BinaryIO, io.BufferedReader(_Streams(file, bz2.BZ2Decompressor), _CHUNK))


def open_xz(file: BinaryIO, mode: str = "rb") -> BinaryIO:
    """Opens a .xz file likewise; LZMAError where it is damaged."""
    return cast(BinaryIO, io.BufferedReader(_Streams(file, lzma.LZMADecompressor), _CHUNK))
