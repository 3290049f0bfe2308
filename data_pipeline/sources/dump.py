"""Source kind `dump`: `pages-articles` XML of a MediaWiki wiki, plain or .bz2.

Each article is a document. Redirects, other namespaces, disambiguation pages, content other than
wikitext and pages that are longer than MediaWiki allows are counted and left out. The raw text of a
document is its wikitext; `text.wikitext` makes plain text of it, which the rules of `wikiextractor`
then clean.

A range of a multistream dump begins where a bzip2 stream does, which holds 100 whole pages
(meta.wikimedia.org/wiki/Data_dumps/Dump_format); of plain XML, at a page. A dump that is one bzip2
stream cannot be cut.
"""

import bz2
import functools
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

from bert_jax.data_pipeline.sources import cutting, finding, formats
from bert_jax.data_pipeline.sources.cutting import cut_file
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.dump_pages import Page, Pages, read_pages
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.formats import COMPRESSED
from bert_jax.data_pipeline.sources.kind import Kind
from bert_jax.data_pipeline.sources.reading import opened, read_errors
from bert_jax.data_pipeline.sources.streams import open_bz2
from bert_jax.data_pipeline.sources.wikiextractor_rules import RULES
from bert_jax.data_pipeline.text.wikitext import check_parser, is_disambiguation, plain_text
from bert_jax.errors import UserError
from bert_jax.storage.read_files import open_bytes, size_of

_BYTES_PER_SECOND: Final = 0.95e6  # of .bz2 on one core, the whole build: docs/data_reference.md
_CHUNK: Final = 1 << 16
_NEAR: Final = 1 << 20  # bytes searched at a time, more than a block of bzip2
_CHANCES: Final = 100  # streams that do not begin with a page before the search ends
_STREAM: Final = re.compile(rb"BZh[1-9]1AY&SY")
_PAGE: Final = b"<page>"
_NAME: Final = re.compile(r".*\.xml(-p\d+p\d+)?(\.bz2|\.gz|\.xz|\.zst)?", re.IGNORECASE)
_CLOSING: Final = b"</mediawiki>"
_WIKITEXT: Final = ("", "wikitext", "text/x-wiki")  # models and formats
_REDIRECT: Final = re.compile(r"\s*#redirect\b", re.IGNORECASE)


def find(spec: SourceSpec) -> Found:
    """Returns the dump, or the dumps in a folder; warns of each that one core has to read."""
    check_parser()
    found = finding.find(
        spec, lambda path: bool(_NAME.fullmatch(path.name)), "a dump (.xml, .xml.bz2)", text=False
    )
    warnings = [_warning(path) for path in found.files if _is_alone(path)]
    return Found(found.files, found.left_out, warnings)


def _is_alone(path: Path) -> bool:
    """Returns whether a file is too large for one range, and compressed such that it cannot be
    cut."""
    suffix = path.suffix.lower()
    with read_errors(path, "download it again"):
        if suffix not in COMPRESSED or size_of(path) <= cutting.RANGE_BYTES:
            return False
        if suffix != ".bz2":
            return True
        with open_bytes(path, ahead=False) as stream:
            return _next_stream(stream, 1, most=16 * _NEAR) is None


def _warning(path: Path) -> str:
    hours = size_of(path) / _BYTES_PER_SECOND / 3600
    name = re.sub(r"pages-articles(?!-multistream)", "pages-articles-multistream", path.name)
    better = name if name != path.name else "the file with -multistream in its name"
    return (
        f"{path.name} is compressed as one stream, which only one core can read: about {hours:.1f} "
        f"hours; to use every core, download {better}"
    )


def ranges(spec: SourceSpec, path: Path) -> Iterator[Range]:
    """Yields ranges that begin with a page, but for the first."""
    is_bzip2 = path.suffix.lower() == ".bz2"

    def end(stream: BinaryIO, start: int, target: int) -> int:
        pages = _positions(stream, target, re.compile(_PAGE))
        found = _next_stream(stream, target) if is_bzip2 else next(pages, None)
        return stream.seek(0, io.SEEK_END) if found is None else found

    return cut_file(path, end, is_compressed=is_bzip2)


def _next_stream(stream: BinaryIO, target: int, most: int | None = None) -> int | None:
    """Returns the first position from `target` on, at most `most` bytes after it, where a bzip2
    stream begins that begins with a page; None if there is none."""
    chances = _CHANCES
    for position in _positions(stream, target, _STREAM, most):
        stream.seek(position)
        if _begins_with_page(stream.read(_NEAR)):
            return position
        chances -= 1
        if not chances:
            break
    return None


def _positions(
    stream: BinaryIO, target: int, pattern: re.Pattern[bytes], most: int | None = None
) -> Iterator[int]:
    """Yields the positions of a pattern of less than 16 bytes from `target` on."""
    at, kept = target, b""
    while most is None or at < target + most:
        stream.seek(at)
        data = stream.read(_NEAR)
        if not data:
            return
        searched = kept + data
        for match in pattern.finditer(searched):
            if match.end() > len(kept):  # else it was found before
                yield at - len(kept) + match.start()
        at += len(data)
        kept = searched[-16:]


def _begins_with_page(compressed: bytes) -> bool:
    try:
        text = bz2.BZ2Decompressor().decompress(compressed, max_length=256)
    except OSError:
        return False
    return text.lstrip().startswith(_PAGE)


def read(spec: SourceSpec, part: Range) -> Iterator[Document]:
    """Yields the articles of one range, and what is left out as documents that are `skipped`.

    Raises:
        UserError: the file is damaged, ends early, or is not a dump.
    """
    pages = Pages()
    words = functools.partial(plain_text, language=spec.language)
    for page in read_pages(part.path, _xml(part), pages):
        reason = _why_skipped(page, spec.language)
        if reason:
            yield Document("", page.title, skipped=reason)
        else:
            as_words = functools.partial(words, files=frozenset(pages.files))
            yield Document(page.text, page.title, plain_text=as_words)


def _why_skipped(page: Page, language: str) -> str:
    if page.namespace != "0":
        return "pages of other namespaces"
    if page.redirects or _REDIRECT.match(page.text):
        return "redirects"
    if page.model not in _WIKITEXT or page.format not in _WIKITEXT:
        return "pages of other content than wikitext"
    if page.too_long:
        return "pages above 2 MiB"
    return "disambiguation pages" if is_disambiguation(page.text, language) else ""


def _xml(part: Range) -> Iterator[bytes]:
    """Yields the XML of a range, in chunks, with the start and the end of the dump around it."""
    yield from _head(part.path) if part.start else ()
    with read_errors(part.path, "download it again"), _section(part) as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk
    if part.stop is not None and part.stop < size_of(part.path):
        yield _CLOSING


def _head(path: Path) -> Iterator[bytes]:
    """Yields what comes before the first page of a dump: the names of its namespaces."""
    with read_errors(path, "download it again"), opened(path) as stream:
        head, page, _ = stream.read(_NEAR).partition(_PAGE)
    if not page:
        raise UserError(f"{path}: has no page in its first MiB; pass a pages-articles dump")
    yield head


@contextmanager
def _section(part: Range) -> Iterator[BinaryIO]:
    """Opens a range for reading, decompressed."""
    if part.stop is None:
        with opened(part.path) as stream:
            yield stream
        return
    with open_bytes(part.path) as file:
        file.seek(part.start)
        section = io.BufferedReader(_Section(file, part.stop - part.start))
        if part.path.suffix.lower() == ".bz2":
            with open_bz2(cast(BinaryIO, section)) as stream:
                yield stream
        else:
            yield section


class _Section(io.RawIOBase):
    """The next bytes of a file, as a file."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file, self._left = file, length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._file.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


KIND: Final = Kind(
    find,
    read,
    ranges,
    rules=RULES,
    plain_text=False,
    formats=(formats.DUMP, formats.XML),
    described="a Wikipedia dump",
    libraries=("mwparserfromhell",),
)
