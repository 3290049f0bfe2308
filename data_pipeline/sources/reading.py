"""Reads the lines of a file; reports errors that a user can cause."""

import gzip
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader, IOBase
from pathlib import Path
from typing import Any

from bert_jax.data_pipeline.sources.extras import import_extra
from bert_jax.data_pipeline.sources.formats import COMPRESSED, HEAD, format_of_start, refuse
from bert_jax.data_pipeline.sources.streams import open_bz2, open_xz
from bert_jax.data_pipeline.text.line_ends import split_lines
from bert_jax.errors import UserError, conversion
from bert_jax.storage.read_files import open_bytes
from bert_jax.storage.reader_errors import DECOMPRESSION_ERRORS, one_line
from bert_jax.storage.remote import is_remote, storage_errors


def _open_zstd(stream: IOBase, mode: str) -> BufferedReader:
    pyarrow = import_extra("pyarrow", "arrow", "files compressed with zstd")
    return BufferedReader(pyarrow.CompressedInputStream(stream, "zstd"))


_OPENERS: Mapping[str, Callable[..., Any]] = dict(
    zip(COMPRESSED, (open_bz2, gzip.open, open_xz, _open_zstd), strict=True)
)
_LONGEST = 1 << 27  # bytes of a line, which is in memory as a whole
_TEXT = "running text in UTF-8"


@contextmanager
def opened(path: Path, *, ahead: bool = True) -> Iterator[BufferedReader]:
    """Opens a file, local or in a bucket, for reading bytes; decompresses it.

    Args:
        ahead: as in `open_bytes`.
    """
    opener = _OPENERS.get(path.suffix.lower())
    with open_bytes(path, ahead=ahead) as stream:
        if opener is None:
            yield stream
        else:
            with opener(stream, "rb") as decompressed:
                yield decompressed


@contextmanager
def read_errors(path: Path, again: str = "copy it again") -> Iterator[None]:
    """Turns the errors of reading and decompressing a file into a UserError.

    again: what to do about a damaged one.
    """
    try:
        with storage_errors(path, remedy=remedy_of(path, again)):
            yield
    except DECOMPRESSION_ERRORS as error:
        raise UserError(f"{path}: cannot be read ({one_line(error)}); {again}") from None


def remedy_of(path: Path, again: str = "copy it again") -> str:
    """Returns what to do about a file that the disk cannot read; nothing for one in a bucket."""
    return "" if is_remote(path) else f"; {again}"


def lines(
    path: Path, start: int = 0, stop: int | None = None, *, markup: bool = False
) -> Iterator[str]:
    """Yields the lines of a UTF-8 file without line ends (LF, CR LF or CR); decompresses .bz2, .gz,
    .xz and .zst.

    Args:
        start: the byte where a line begins; 0 for a compressed file.
        stop: the byte after the last line; None: the end of the file.
        markup: also reject markup and JSON.

    Raises:
        UserError: an unreadable file, a damaged archive, another format, a line of more than 128
            MiB, or bytes that are not UTF-8 (with their offset in the decompressed text).
    """
    offset = start
    with read_errors(path), opened(path) as stream:
        if start:
            stream.seek(start)
        else:
            head = stream.peek(HEAD)[:HEAD]
            refuse(path, format_of_start(head, markup=markup), _TEXT)
        for line in iter(lambda: stream.readline(_LONGEST + 1), b""):
            if stop is not None and offset >= stop:
                return
            if len(line) > _LONGEST:
                raise UserError(
                    f"{path}: a line of more than {_LONGEST:,} bytes from byte {offset:,} on; "
                    "divide it, or leave the file out"
                )
            try:
                yield from decoded(line, offset)
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path}: not UTF-8 at byte {offset + error.start:,} "
                    f"(0x{line[error.start]:02x}); convert it with "
                    f"{conversion(line)}, or leave it out"
                ) from None
            offset += len(line)


def decoded(line: bytes, offset: int, errors: str = "strict") -> list[str]:
    """Returns the lines in what ends with LF: more than one if CR alone ends some of them.

    Args:
        offset: of the first byte in the file, whose start may be a byte order mark.
        errors: what becomes of bytes that are not UTF-8, as in `bytes.decode`.
    """
    text = line.decode("utf-8", errors)
    return split_lines(text if offset else text.removeprefix("\ufeff"))


def check(path: Path, *, markup: bool) -> None:
    """Raises UserError as `lines` does, from a file's start; skips compressed files, because
    decompressing is slow."""
    if path.suffix.lower() in COMPRESSED:
        return
    with storage_errors(path, remedy=remedy_of(path)), opened(path, ahead=False) as stream:
        head = stream.read(HEAD)
    refuse(path, format_of_start(head, markup=markup), _TEXT)


def cut(run: Iterable[str], limit: int, size: int) -> Iterator[tuple[list[str], bool]]:
    """Yields a run of lines as one document, or, above `limit` lines, as documents of `size` lines;
    each as its lines, and whether it was cut.

    Blank lines are not counted, and the last document takes the rest. Holds at most `limit`
    non-blank lines in memory.
    """
    held: list[str] = []
    count = 0
    cutting = False
    for line in run:
        held.append(line)
        count += bool(line.strip())
        if count > limit:
            cutting = True
        while cutting and count > size:
            ends = itertools.accumulate(bool(text.strip()) for text in held)
            end = next(i for i, filled in enumerate(ends, 1) if filled == size)
            yield held[:end], True
            held, count = held[end:], count - size
    if count:
        yield held, cutting
