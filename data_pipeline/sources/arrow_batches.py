"""Documents from batches of Arrow, which both Parquet and Arrow files consist of."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert_jax.data_pipeline.sources.document import Document, SourceSpec
from bert_jax.data_pipeline.sources.extras import import_extra
from bert_jax.data_pipeline.sources.reading import remedy_of
from bert_jax.data_pipeline.sources.rows import BATCH, check_columns, column_names, not_text
from bert_jax.errors import UserError
from bert_jax.storage.reader_errors import arrow_library_errors, reader_errors
from bert_jax.storage.remote import storage_errors


def check_arrow(what: str) -> None:
    """Raises UserError, which says how to install it, if pyarrow is missing."""
    import_extra("pyarrow", "arrow", what)


def check_schema(path: Path, spec: SourceSpec, schema: Any) -> None:
    """Raises UserError if a column that is read is missing, or is not text."""
    check_columns(path, spec, schema.names)
    for name in column_names(spec):
        kind = schema.field(name).type
        if not _is_text(kind):
            raise not_text(path, name, str(kind))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return any(
        check(kind) for check in (types.is_string, types.is_large_string, types.is_string_view)
    )


def documents(path: Path, spec: SourceSpec, batches: Iterable[Any]) -> Iterator[Document]:
    """Yields the document of each row; a missing value (null) is an empty text."""
    names = column_names(spec)
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH):
            rows = batch.slice(start, BATCH)
            try:
                columns = [rows.column(name).to_pylist() for name in names]
            except UnicodeDecodeError as error:
                raise UserError(f"{path}: a text is not UTF-8 ({error}); write it again") from None
            for text, *title in zip(*columns, strict=True):
                yield Document(text or "", (title and title[0]) or "")


@contextmanager
def arrow_errors(path: Path, what: str) -> Iterator[None]:
    """Turns the errors of a damaged file into a UserError."""
    with (
        reader_errors(path, arrow_library_errors(), f"cannot be read as {what}", "copy it again"),
        storage_errors(path, remedy=remedy_of(path)),
    ):
        yield
