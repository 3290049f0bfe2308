"""Files of a source and their lines, with the errors a user can cause."""

import bz2
import gzip
import itertools
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from data_pipeline.errors import UserError
from data_pipeline.sources.document import SourceSpec

_OPENERS: dict[str, Callable[..., object]] = {".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}
COMPRESSED = tuple(_OPENERS)


def files_under(spec: SourceSpec, wanted: Callable[[Path], bool], described: str) -> list[Path]:
    """The file itself, or the files `wanted` below a folder, sorted by their path in it.

    Args:
        described: what `wanted` looks for, for the message.

    Raises:
        UserError: nothing at that path, or no such file in the folder.
    """
    if spec.path.is_file():
        return [spec.path]
    if not spec.path.is_dir():
        raise UserError(f"{spec.path}: no such file or folder; check the path of --source")
    found = [p for p in spec.path.rglob("*") if p.is_file() and not p.name.startswith(".")]
    files = [p for p in found if wanted(p)]
    if not files:
        what = f"{len(found)} files, none of them {described}" if found else "empty folder"
        raise UserError(f"{spec.path}: {what}; source {spec.name!r} needs {described}")
    return sorted(files, key=lambda p: p.relative_to(spec.path).as_posix())


def lines(path: Path) -> Iterator[str]:
    """Lines of a UTF-8 file without their ends, one at a time; .bz2, .gz and .xz are unpacked.

    Raises:
        UserError: cannot be read, damaged archive, or not UTF-8 (naming the byte offset, in the
            unpacked text).
    """
    opener = cast("Callable[[Path, str], BinaryIO]", _OPENERS.get(path.suffix, open))
    offset = 0
    try:
        with opener(path, "rb") as stream:
            for line in stream:
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{path}: not UTF-8 at byte {offset + error.start:,} "
                        f"(0x{line[error.start]:02x}); convert it, for example with "
                        "iconv -t UTF-8, or leave it out"
                    ) from None
                yield (text if offset else text.removeprefix("\ufeff")).rstrip("\r\n")
                offset += len(line)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"{path}: cannot be read ({error}); copy it again") from None


def cut(run: Iterable[str], limit: int, size: int) -> Iterator[tuple[list[str], bool]]:
    """A run of lines as one document, or, above `limit` lines, as documents of `size` lines.

    Blank lines are not counted, and the last piece takes what is left; holds at most `limit`
    lines in memory.

    Yields:
        lines of a document, and whether it was cut.
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
