"""Names the kind that fits, where a source of another kind cannot read a file or a folder."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bert_jax.data_pipeline.sources import formats
from bert_jax.data_pipeline.sources.formats import HEAD, Format, format_of_name, format_of_start
from bert_jax.data_pipeline.sources.kind import Kind
from bert_jax.data_pipeline.sources.reading import opened, read_errors
from bert_jax.errors import UserError

_FEWEST_ROWS: Final = 2  # a header and a row
_NO_TEXT: Final = ("{", "[", "<", '"')  # what running text does not begin with


@contextmanager
def naming_other_kind(kind: Kind, path: Path) -> Iterator[None]:
    """Turns the error of a file that a kind cannot read into one that names the file's own kind.

    The file is inspected after a failure only, so that no file that can be read is refused.
    """
    try:
        yield
    except UserError as error:
        form = _other_format(kind, path)
        if form is None:
            raise
        words = f"looks like {form.name}, not {kind.described}"
        raise UserError(f"{path}: {words}; {form.remedy}") from error


def _other_format(kind: Kind, path: Path) -> Format | None:
    """Returns the format of a file; None if it is the kind's own, or not known."""
    if not kind.formats:
        return None
    try:
        with read_errors(path), opened(path, ahead=False) as stream:
            head = stream.read(HEAD)
    except UserError:
        return None
    form = format_of_start(head, markup=True)
    if form is None and head:
        text = head.decode("utf-8", "ignore").removeprefix("\ufeff").lstrip()
        begins = not text.startswith(_NO_TEXT[:3])
        form = formats.TABLE if begins and _is_table(text, len(head) == HEAD) else None
        form = form or format_of_name(path)
        if form is None and _is_running_text(head, text):
            form = formats.TEXT
    return None if form in kind.formats else form


def _is_table(text: str, is_cut: bool) -> bool:
    """Returns whether all rows have as many values as the header, which has no spaces around its
    names."""
    for delimiter in (",", ";", "\t"):
        try:
            rows = list(csv.reader(text.splitlines(keepends=True), delimiter=delimiter))
        except csv.Error:
            continue
        rows = [row for row in (rows[:-1] if is_cut else rows) if row]
        names = rows[0] if rows else []
        is_header = len(names) > 1 and all(name and name == name.strip() for name in names)
        if is_header and len(rows) >= _FEWEST_ROWS and {*map(len, rows)} == {len(names)}:
            return True
    return False


def _is_running_text(head: bytes, text: str) -> bool:
    """Returns whether a file begins with text in UTF-8 that is not of JSON or markup."""
    try:
        head[:-4].decode()  # without a character that the end of the head may cut
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return False
    shown = all(c.isprintable() or c.isspace() for c in text)
    return shown and not text.startswith(_NO_TEXT)
