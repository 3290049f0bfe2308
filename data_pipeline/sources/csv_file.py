"""Source kind `csv`: a table, each row of which is a document; also compressed.

Values are separated by commas, tabs or semicolons, and may be quoted as in RFC 4180. A quoted value
may hold line ends, so that a file cannot be cut.
"""

import csv
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from bert_jax.data_pipeline.sources import finding, formats
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.formats import extension
from bert_jax.data_pipeline.sources.kind import COLUMNS, TEXT, TITLE, Kind
from bert_jax.data_pipeline.sources.reading import lines
from bert_jax.data_pipeline.sources.rows import check_columns, column_names, row_document
from bert_jax.errors import UserError, count

_EXTENSIONS = (".csv", ".tsv")
_DELIMITERS = (",", "\t", ";")
_LONGEST = 1 << 27  # characters of a value; the csv module's own limit is 131,072


def find(spec: SourceSpec) -> Found:
    """Returns the tables of the source."""
    described = "tables (.csv, .tsv)"
    return finding.find(spec, lambda path: extension(path) in _EXTENSIONS, described, text=False)


def read(spec: SourceSpec, part: Range) -> Iterator[Document]:
    """Yields the document of each row; UserError, with the line, for a stray quote or a row with
    more or fewer values than the header."""
    csv.field_size_limit(_LONGEST)
    text = (f"{line}\n" for line in lines(part.path))
    first = next(text, "")
    delimiter, header = _header(part.path, spec, first)
    rows = chain([first], text) if spec.columns else text
    reader = csv.reader(rows, delimiter=delimiter, strict=True)
    while True:
        where = f"{part.path}:{reader.line_num + (1 if spec.columns else 2)}"
        try:
            values = next(reader, None)
        except csv.Error as error:
            raise UserError(f"{where}: {error}; double a quote inside quotes") from None
        if values is None:
            return
        if values and len(values) != len(header):
            raise UserError(
                f"{where}: {count(len(values), 'value')}, but {count(len(header), 'column')}; put "
                f"a value that has {delimiter!r} or a line end in double quotes"
            )
        if values:
            yield row_document(where, spec, dict(zip(header, values, strict=True)))


def _header(path: Path, spec: SourceSpec, line: str) -> tuple[str, list[str]]:
    """Returns the delimiter with which a table has the columns that are read, and its columns."""
    found = {d: next(csv.reader([line], delimiter=d), []) for d in _DELIMITERS}
    names = list(spec.columns)
    for delimiter, values in found.items():
        header = names or values
        if len(header) == len(values) and set(column_names(spec)) <= set(header):
            check_columns(path, spec, header)
            return delimiter, header
    widest = max(found.values(), key=len)
    check_columns(path, spec, names or widest)
    raise UserError(
        f"{path}: {count(len(names), 'name')} in columns=, but {count(len(widest), 'column')}; "
        "name them all"
    )


KIND: Final = Kind(
    find,
    read,
    options=(TEXT, TITLE, COLUMNS),
    extensions=_EXTENSIONS,
    formats=(formats.TABLE, formats.TEXT),
    described="a table",
)
