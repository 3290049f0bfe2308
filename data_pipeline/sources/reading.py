"""Reads the lines of a file; reports errors that a user can cause."""

import bz2
import gzip
import itertools
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import cast

from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.sources.formats import COMPRESSED, HEAD, check_start
from bert_jax.data_pipeline.storage.remote import storage_errors

_OPENERS: dict[str, Callable[..., object]] = dict(
    zip(COMPRESSED, (bz2.open, gzip.open, lzma.open), strict=True)
)
_TEXT = "UTF-8 text"


def lines(path: Path, *, markup: bool = False) -> Iterator[str]:
    """Yields the lines of a UTF-8 file without line ends (LF, CR LF or CR); decompresses .bz2, .gz
    and .xz.

    Args:
        markup: reject markup and JSON as well as binary formats.

    Raises:
        UserError: unreadable file, damaged archive, another format, or not UTF-8 (with the byte
            offset in the decompressed text).
    """
    opener = cast("Callable[[Path, str], BufferedReader]", _OPENERS.get(path.suffix.lower(), open))
    offset = 0
    try:
        with opener(path, "rb") as stream:
            check_start(path, stream.peek(HEAD)[:HEAD], _TEXT, markup=markup)
            for line in stream:
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{path}: not UTF-8 at byte {offset + error.start:,} "
                        f"(0x{line[error.start]:02x}); convert it, for example with "
                        "iconv -t UTF-8, or leave it out"
                    ) from None
                text = (text if offset else text.removeprefix("\ufeff")).rstrip("\r\n")
                if "\r" in text:
                    yield from text.split("\r")
                else:
                    yield text
                offset += len(line)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"{path}: cannot be read ({error}); copy it again") from None


def check(path: Path, *, markup: bool) -> None:
    """Checks a file's start as `lines` does; skips compressed files, because decompressing is slow.

    Raises:
        UserError: unreadable file, or another format.
    """
    if path.suffix.lower() in COMPRESSED:
        return
    with storage_errors(path, remedy="; copy it again"), path.open("rb") as stream:
        head = stream.read(HEAD)
    check_start(path, head, _TEXT, markup=markup)


def cut(run: Iterable[str], limit: int, size: int) -> Iterator[tuple[list[str], bool]]:
    """Yields a run of lines as one document, or, above `limit` lines, as documents of `size` lines.

    Blank lines are not counted, and the last document takes the rest. Holds at most `limit`
    non-blank lines in memory.

    Yields:
        the lines of a document, and whether it was cut.
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
