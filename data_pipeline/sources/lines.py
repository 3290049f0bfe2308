"""Source kind `lines`: one sentence per line, a blank line between documents.

This is the input format of google-research/bert `create_pretraining_data.py` (README, "Pre-training
with BERT"). A file without a blank line would be one huge document: it is cut into documents of
`document_lines` lines, and so is any document more than a hundred times that long.
"""

import functools
import re
from collections.abc import Iterator
from itertools import chain, groupby, islice
from pathlib import Path
from typing import BinaryIO, Final

from bert_jax.data_pipeline.sources import finding
from bert_jax.data_pipeline.sources.cutting import cut_file
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.formats import extension
from bert_jax.data_pipeline.sources.kind import LINES, Kind
from bert_jax.data_pipeline.sources.reading import cut, decoded, lines, opened

_ENDLESS = 100  # times document_lines
_BLANK = re.compile(rb"\n[ \t]{0,80}\r?\n")
_NEAR = 1 << 20  # bytes that are searched for a blank line, in pieces
_PIECE = 1 << 16
_TAIL = 4096  # bytes that tell whether the line before a range is blank


def find(spec: SourceSpec) -> Found:
    """Returns the .txt files (also compressed) of the source."""
    described = ".txt files with one sentence per line"
    return finding.find(spec, lambda path: extension(path) == ".txt", described)


def ranges(spec: SourceSpec, path: Path) -> Iterator[Range]:
    """Yields ranges that begin after a blank line or, where there is none, where `read` cuts."""
    return cut_file(path, functools.partial(_end, spec.document_lines))


def _end(size: int, stream: BinaryIO, start: int, target: int) -> int:
    stream.seek(target)
    text = b""
    while len(text) < _NEAR and (piece := stream.read(_PIECE)):
        text += piece
        if blank := _BLANK.search(text):
            return target + blank.end()
    return _end_in_run(size, stream, start, target)


def _end_in_run(size: int, stream: BinaryIO, start: int, target: int) -> int:
    """Returns the first end of a document from `target` on; reads the text from `start` on.

    Only a document of which more than the limit lies in this range counts as one that is cut: it
    would be cut without the rest, too.
    """
    inside = _is_in_run(stream, start)
    stream.seek(start)
    position, count = start, 0  # non-blank lines since the last blank one
    for line in stream:
        for text in decoded(line, position, errors="replace"):
            filled = bool(text.strip())
            inside, count = inside and filled, count + 1 if filled else 0
        position += len(line)
        is_cut = not count % size and (inside or count > size * _ENDLESS)
        if position >= target and (is_cut if count else len(line) < _TAIL):
            return position
    return position


def _is_in_run(stream: BinaryIO, start: int) -> bool:
    """Returns whether the line before a position that `_end` returned has text."""
    first = max(start - _TAIL, 0)
    stream.seek(first)
    before = stream.read(start - first).removesuffix(b"\n").rpartition(b"\n")
    if first and not before[1]:
        return True  # a long line, which `_end` takes for blank nowhere
    return any(text.strip() for text in [*decoded(before[2], first, errors="replace")][-1:])


def read(spec: SourceSpec, part: Range) -> Iterator[Document]:
    """Yields the documents that begin in one range, already split into sentences."""
    size = spec.document_lines
    usual = 0  # lines of this file that make one document without being cut, seldom needed
    text = lines(part.path, part.start, part.stop, markup=True)
    for number, (filled, run) in enumerate(groupby(text, lambda line: bool(line.strip()))):
        if not filled:
            continue
        first = list(islice(run, size + 1))
        inside = number == 0 and part.start > 0 and _continues(part)
        if len(first) > size and not inside and not usual:
            usual = size * _ENDLESS if _has_boundary(part.path, size * _ENDLESS) else size
        limit = 0 if inside else max(usual, size)
        for document, was_cut in cut(chain(first, run), limit, size):
            yield Document("\n".join(document), sentences_given=True, cut=was_cut)


def _continues(part: Range) -> bool:
    """Returns whether a range begins within a run of lines that is cut."""
    with opened(part.path, ahead=False) as stream:
        return _is_in_run(stream, part.start)


def _has_boundary(path: Path, most: int) -> bool:
    """Returns whether a blank line separates two non-blank lines. True, too, if more than `most`
    lines come first: these are cut in either case, and the file need not be read to its end."""
    count, ended = 0, False
    for line in lines(path):
        filled = bool(line.strip())
        if filled and ended:
            return True
        count += filled
        if count > most:
            return True
        ended = count > 0 and not filled
    return False


KIND: Final = Kind(
    find,
    read,
    ranges,
    options=(LINES,),
    markup=True,
    cut_because="no blank lines between documents",
    cut_remedy="put a blank line between documents",
)
