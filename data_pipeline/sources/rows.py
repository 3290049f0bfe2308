"""Rows as documents: what the kinds whose text is a column have in common."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from bert_jax.data_pipeline.sources.document import Document, SourceSpec
from bert_jax.errors import UserError, first_few

BATCH: Final = 64  # rows in memory at the same time; each may be a book
_SHOWN: Final = 20  # names of columns in a message


def column_names(spec: SourceSpec) -> list[str]:
    """Returns the columns that are read: of the text and, if there is one, of the title."""
    return [spec.text, spec.title] if spec.title else [spec.text]


def check_columns(where: object, spec: SourceSpec, columns: Iterable[str]) -> None:
    """Raises UserError, which lists the columns, if one that is read is not there once."""
    present = list(columns)
    for option, name in zip(("text", "title"), column_names(spec), strict=False):
        if name not in present:
            shown = first_few(present, _SHOWN)
            raise UserError(
                f"{where}: no column {name!r}; its columns are {', '.join(shown) or 'none'}; "
                f"name one with ,{option}=NAME in --source"
            )
        if (times := present.count(name)) > 1:
            raise UserError(f"{where}: {times} columns are named {name!r}; rename one")


def not_text(where: object, column: str, what: str) -> UserError:
    """Returns the error of a column whose values are no strings."""
    return UserError(
        f"{where}: column {column!r} is of type {what}, not text; name another in --source"
    )


def row_document(where: object, spec: SourceSpec, row: Mapping[str, Any]) -> Document:
    """Returns the document of a row; a missing value (null) is an empty text, which the build
    counts. UserError if a value is not a string."""
    values = {name: row[name] for name in column_names(spec)}
    for name, value in values.items():
        if not isinstance(value, str | None):
            raise not_text(where, name, type(value).__name__)
    return Document(values[spec.text] or "", values.get(spec.title) or "")
