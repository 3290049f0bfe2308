"""The rows of a Parquet file, for the tables of tasks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from etils import epath

from bert_jax.data_pipeline.sources.arrow_batches import arrow_errors, check_arrow
from bert_jax.finetune.tasks.rows import column_index
from bert_jax.storage.read_files import open_bytes, path_of

PARQUET: Final = ".parquet"
# (path, row, name, value) -> the text; raises UserError for what is none.
TextOf = Callable[[epath.PathLike, int, str, Any], str]
_BATCH: Final = 4096  # rows in memory


@contextmanager
def _opened(path: epath.PathLike) -> Iterator[Any]:
    check_arrow("Parquet files")
    from pyarrow.parquet import ParquetFile

    local = path_of(str(path))
    with arrow_errors(local, "Parquet"), open_bytes(local) as stream:
        yield ParquetFile(stream)


def parquet_titles(path: epath.PathLike) -> list[str]:
    """Returns the names of the columns; UserError if the file cannot be read."""
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def parquet_rows(
    path: epath.PathLike,
    names: Sequence[str],
    optional: Sequence[str],
    text_of: TextOf,
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the number of each row, from 1, and the values of the named columns as text; "" of an
    optional one that is not there, or null."""
    with _opened(path) as file:
        titles = list(file.schema_arrow.names)
        there = [*names, *(name for name in optional if name in titles)]
        for name in there:
            column_index(path, titles, name)
        missing = dict.fromkeys(optional, "")
        row = 0
        for batch in file.iter_batches(_BATCH, columns=list(dict.fromkeys(there))):
            for values in batch.to_pylist():
                row += 1
                own = {
                    name: text_of(path, row, name, values[name])
                    for name in there
                    if name in names or values[name] is not None
                }
                yield row, missing | own
