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
        data = b""
        while not data:
            compressed = b""
            if self._stream.eof:
                compressed = self._next_stream()
                if not compressed:
                    return 0
                self._stream = self._new()
            elif self._stream.needs_input:
                compressed = self._file.read(_CHUNK)
                if not compressed:
                    raise EOFError("it ends before its last stream does")
            data = self._stream.decompress(compressed, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _next_stream(self) -> bytes:
        """Returns what follows a stream and its padding, b"" at the end of the file."""
        data = self._stream.unused_data.lstrip(b"\0")
        while not data and (chunk := self._file.read(_CHUNK)):
            data = chunk.lstrip(b"\0")
        return data


def open_bz2(file: BinaryIO, mode: str = "rb") -> BinaryIO:
    """Opens a .bz2 file for reading its text; OSError where it is damaged, EOFError where it is cut
    off."""
    return cast(BinaryIO, io.BufferedReader(_Streams(file, bz2.BZ2Decompressor), _CHUNK))


def open_xz(file: BinaryIO, mode: str = "rb") -> BinaryIO:
    """Opens a .xz file likewise; LZMAError where it is damaged."""
    return cast(BinaryIO, io.BufferedReader(_Streams(file, lzma.LZMADecompressor), _CHUNK))
