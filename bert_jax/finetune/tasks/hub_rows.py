"""The rows of a dataset on the Hugging Face hub, for the tables of tasks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bert_jax.data_pipeline.sources import hub_dataset
from bert_jax.finetune.tasks.parquet_rows import TextOf, parquet_rows, parquet_titles
from bert_jax.storage import hub


def hub_titles(name: str) -> list[str]:
    """Returns the names of the columns of a split; UserError as `hub_dataset.download`."""
    with _files(name) as files:
        return parquet_titles(files[0])


def hub_rows(
    name: str, names: Sequence[str], optional: Sequence[str], text_of: TextOf
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields what `parquet_rows` does of all files of a split, numbered through.

    Args:
        name: `hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]`.

    Raises:
        UserError: as `hub_dataset.download` and `parquet_rows`.
    """
    number = 0
    with _files(name) as files:
        for file in files:
            for _, values in parquet_rows(file, names, optional, text_of):
                number += 1
                yield number, values


@contextmanager
def _files(name: str) -> Iterator[list[Path]]:
    """Yields the files of a split, downloaded; messages about them name the dataset."""
    files, folder = hub_dataset.download(name)
    with hub.naming(name, folder):
        yield files
