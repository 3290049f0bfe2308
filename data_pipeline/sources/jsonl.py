"""Source kind `jsonl`: a JSON object per line, which is a document; also compressed.

The text is the value of the key `text`, or of another one with `text=`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bert_jax.data_pipeline.sources import finding, formats
from bert_jax.data_pipeline.sources.cutting import cut_file, line_end
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.formats import extension
from bert_jax.data_pipeline.sources.kind import TEXT, TITLE, Kind
from bert_jax.data_pipeline.sources.reading import lines
from bert_jax.data_pipeline.sources.rows import check_columns, column_names, row_document
from bert_jax.errors import UserError, refuse_array
from bert_jax.storage import json_record
from bert_jax.storage.read_files import open_bytes

_EXTENSIONS = (".jsonl", ".ndjson", ".json")
_PIECE = 1 << 20


def find(spec: SourceSpec) -> Found:
    """Returns the files of JSON lines of the source."""
    described = "files of JSON lines (.jsonl)"
    return finding.find(spec, lambda path: extension(path) in _EXTENSIONS, described, text=False)


def ranges(spec: SourceSpec, path: Path) -> Iterator[Range]:
    """Yields ranges that begin with a line."""
    return cut_file(path, line_end)


def read(spec: SourceSpec, part: Range) -> Iterator[Document]:
    """Yields the document of each line; UserError, with the line, for one that is not a JSON object
    with this text."""
    names, is_first = set(column_names(spec)), not part.start
    for number, line in enumerate(lines(part.path, part.start, part.stop)):
        if not line.strip():
            continue
        where = _Place(part, number)
        try:
            row = json_record.parse_object(line)
        except ValueError as error:
            if is_first:
                refuse_array(part.path, line)
            raise UserError(f"{where}: {error}; correct the line") from None
        is_first = False
        if not names <= row.keys():
            check_columns(where, spec, row)
        yield row_document(where, spec, row)


@dataclass(frozen=True)
class _Place:
    """The place of a line; its number in the file is determined for messages alone."""

    part: Range
    number: int  # in the range, from 0

    def __str__(self) -> str:
        left, before = self.part.start, 0
        if left:
            with open_bytes(self.part.path) as stream:
                while left and (piece := stream.read(min(left, _PIECE))):
                    left, before = left - len(piece), before + piece.count(b"\n")
        return f"{self.part.path}:{before + self.number + 1}"


KIND: Final = Kind(
    find,
    read,
    ranges,
    options=(TEXT, TITLE),
    extensions=_EXTENSIONS,
    formats=(formats.JSON,),
    described="JSON lines",
)
