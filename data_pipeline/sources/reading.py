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
from bert_jax.data_pipeline.sources.formats import COMPRESSED, HEAD, format_of_start, refuse
from bert_jax.data_pipeline.storage.remote import storage_errors

_OPENERS: dict[str, Callable[..., object]] = dict(
    zip(COMPRESSED, (bz2.open, gzip.open, lzma.open), strict=True)
)
_TEXT = "running text in UTF-8"


def lines(path: Path, *, markup: bool = False) -> Iterator[str]:
    """Yields the lines of a UTF-8 file without line ends (LF, CR LF or CR); decompresses .bz2, .gz
    and .xz. Raises UserError for an unreadable file, a damaged archive, another format (with
    `markup` also markup and JSON), or bytes that are not UTF-8 (with their offset in the
    decompressed text)."""
    opener = cast("Callable[[Path, str], BufferedReader]", _OPENERS.get(path.suffix.lower(), open))
    offset = 0
    try:
        with opener(path, "rb") as stream:
            head = stream.peek(HEAD)[:HEAD]
            refuse(path, format_of_start(head, markup=markup), _TEXT)
            for line in stream:
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{path}: not UTF-8 at byte {offset + error.start:,} "
                        f"(0x{line[error.start]:02x}); convert it, for example with "
                        "iconv -f LATIN1 -t UTF-8 OLD.txt > NEW.txt, or leave it out"
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
    """Raises UserError as `lines` does, from a file's start; skips compressed files, because
    decompressing is slow."""
    if path.suffix.lower() in COMPRESSED:
        return
    with storage_errors(path, remedy="; copy it again"), path.open("rb") as stream:
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
