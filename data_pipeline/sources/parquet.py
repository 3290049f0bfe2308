"""Source kind `parquet`: each row of a Parquet file is a document; read row group by row group."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bert_jax.data_pipeline.sources import finding, formats
from bert_jax.data_pipeline.sources.arrow_batches import (
    arrow_errors,
    check_arrow,
    check_schema,
    documents,
)
from bert_jax.data_pipeline.sources.cutting import cut_positions
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.kind import TEXT, TITLE, Kind
from bert_jax.data_pipeline.sources.rows import BATCH, column_names
from bert_jax.storage.read_files import open_bytes

_EXTENSIONS = (".parquet",)
_BUFFER = 1 << 20  # bytes read at a time, so that a row group is not in memory as a whole


def find(spec: SourceSpec) -> Found:
    """Returns the Parquet files of the source."""
    check_arrow("Parquet files")
    return finding.find_ending(spec, _EXTENSIONS, "Parquet files (.parquet)")


@contextmanager
def _opened(spec: SourceSpec, path: Path) -> Iterator[Any]:
    """Opens a file that has the columns which are read."""
    from pyarrow.parquet import ParquetFile

    with arrow_errors(path, "Parquet"), open_bytes(path) as stream:
        file = ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER)
        check_schema(path, spec, file.schema_arrow)
        yield file


def ranges(spec: SourceSpec, path: Path) -> Iterator[Range]:
    """Yields ranges of row groups; their bytes are those of the columns, decompressed."""
    names = set(column_names(spec))
    with _opened(spec, path) as file:
        groups = map(file.metadata.row_group, range(file.num_row_groups))
        yield from cut_positions(path, [_size(group, names) for group in groups])


def _size(group: Any, names: set[str]) -> int:
    columns = map(group.column, range(group.num_columns))
    return sum(c.total_uncompressed_size for c in columns if c.path_in_schema in names)


def read(spec: SourceSpec, part: Range) -> Iterator[Document]:
    """Yields the documents of the row groups of one range."""
    with _opened(spec, part.path) as file:
        stop = file.num_row_groups if part.stop is None else part.stop
        batches = file.iter_batches(
            BATCH, row_groups=range(part.start, stop), columns=column_names(spec), use_threads=False
        )
        yield from documents(part.path, spec, batches)


KIND: Final = Kind(
    find,
    read,
    ranges,
    options=(TEXT, TITLE),
    extensions=_EXTENSIONS,
    plain_text=False,
    formats=(formats.PARQUET,),
    described="Parquet",
)
