"""Source kind `csv`: a table, each row of which is a document; also compressed.

Values of a .csv are separated by commas, tabs or semicolons, and may be quoted as in RFC 4180;
those of a .tsv by tabs, and its quotes may be text (`tab_rows.py`) unless its header is in quotes.
A quoted value may hold line ends, so that a file cannot be cut.
"""

import csv
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from bert_jax.data_pipeline.sources import finding, formats
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.enclosed_rows import QuoteError, enclosed_rows
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.formats import extension
from bert_jax.data_pipeline.sources.kind import COLUMNS, TEXT, TITLE, Kind
from bert_jax.data_pipeline.sources.reading import lines
from bert_jax.data_pipeline.sources.rows import check_columns, column_names, row_document
from bert_jax.data_pipeline.sources.tab_rows import TAB, tab_rows
from bert_jax.errors import UserError, count

_EXTENSIONS = (".csv", ".tsv")
_DELIMITERS = (",", "\t", ";")


def find(spec: SourceSpec) -> Found:
    """Returns the tables of the source."""
    described = "tables (.csv, .tsv)"
    return finding.find(spec, lambda path: extension(path) in _EXTENSIONS, described, text=False)


def read(spec: SourceSpec, part: Range) -> Iterator[Document]:
    """Yields the document of each row; UserError, with the line, for a stray quote or a row with
    more or fewer values than the header."""
    text = lines(part.path)
    first = next(text, "")
    delimiter, header = _header(part.path, spec, first)
    rows, before = (chain([first], text), 0) if spec.columns else (text, 1)
    if _quotes_are_text(part.path, spec, first):
        found = tab_rows(rows, len(header))
    else:
        found = _quoted_rows(part.path, rows, delimiter, before)
    for number, values in found:
        if not values:
            continue
        where = f"{part.path}:{before + number}"
        if len(values) != len(header):
            raise UserError(
                f"{where}: {count(len(values), 'value')}, but {count(len(header), 'column')}; put "
                f"a value that has {delimiter!r} or a line end in double quotes"
            )
        yield row_document(where, spec, dict(zip(header, values, strict=True)))


def _quoted_rows(
    path: Path, lines: Iterator[str], delimiter: str, before: int
) -> Iterator[tuple[int, list[str]]]:
    """Yields what `enclosed_rows` does.

    lines: without line ends. before: lines of the file before these, for errors.
    """
    try:
        yield from enclosed_rows((f"{line}\n" for line in lines), delimiter)
    except QuoteError as error:
        where, advice = f"{path}:{before + error.row}", error.advice
        problem = f"{error.problem}; {advice or 'double a quote inside quotes'}"
        raise UserError(f"{where}: {problem}") from None


def _is_of_tabs(path: Path) -> bool:
    return extension(path) == ".tsv"


def _quotes_are_text(path: Path, spec: SourceSpec, first: str) -> bool:
    """Returns whether quotes may be text; first: the first line, the header if there is one."""
    return _is_of_tabs(path) and (bool(spec.columns) or not first.startswith('"'))


def _header(path: Path, spec: SourceSpec, line: str) -> tuple[str, list[str]]:
    """Returns the delimiter with which a table has the columns that are read, and its columns."""
    names = list(spec.columns)
    if _quotes_are_text(path, spec, line):
        found = {TAB: line.split(TAB)}
    else:
        delimiters = (TAB,) if _is_of_tabs(path) else _DELIMITERS
        found = {d: next(csv.reader([line], delimiter=d), []) for d in delimiters}
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
