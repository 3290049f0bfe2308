"""Source kind `tfds`: a prepared dataset of TensorFlow Datasets; each record is a document."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bert_jax.data_pipeline.folders.check import check_files
from bert_jax.data_pipeline.folders.datasets import PREPARED_FILES
from bert_jax.data_pipeline.sources.cutting import cut_positions
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.extras import import_extra
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.kind import SPLIT, TEXT, TITLE, Kind
from bert_jax.data_pipeline.sources.prepared import (
    FEATURES,
    INFO,
    check_length,
    check_split,
    files_of,
    find_newest,
    info_of,
    is_text,
    only_one,
    read_records,
    text_of,
)
from bert_jax.data_pipeline.sources.rows import (
    check_columns,
    column_names,
    not_text,
    row_document,
)
from bert_jax.errors import UserError
from bert_jax.storage.read_files import size_of
from bert_jax.storage.remote import is_remote


def _dataset_path(text: str, data_dir: str) -> str:
    """Returns the folder of a dataset: `text` itself, or, for a name as `tfds.load` takes it
    (wikipedia/20230601.en:1.0.0), the folder of this name below `data_dir`.

    Args:
        data_dir: "": where TensorFlow Datasets prepares, $TFDS_DATA_DIR or ~/tensorflow_datasets.
    """
    if not text or is_remote(text) or os.path.isabs(text) or os.path.isdir(text):
        return text
    usual = os.environ.get("TFDS_DATA_DIR") or os.path.expanduser("~/tensorflow_datasets")
    return f"{(data_dir or usual).rstrip('/')}/{text.replace(':', '/')}"


def find(spec: SourceSpec) -> Found:
    """Returns the files of a split; UserError, before anything is read, if it cannot be."""
    import_extra("tensorflow_datasets", "tfds", "prepared datasets")
    folder = _prepared(spec)
    info = info_of(folder)
    check_split(folder, info, spec.split)
    if not is_remote(folder):
        check_files(folder, PREPARED_FILES)
    if not info.splits[spec.split].num_examples:
        raise UserError(f"{folder}: split {spec.split!r} is empty; choose another with ,split=NAME")
    check_columns(folder, spec, sorted(info.features))
    for name in column_names(spec):
        if not is_text(info.features[name]):
            raise not_text(folder, name, str(info.features[name]))
    about = [folder / name for name in (INFO, FEATURES)]
    return Found([folder / name for name in files_of(info, spec.split)], {}, about=about)


def _prepared(spec: SourceSpec) -> Path:
    """Returns the folder of the newest version; UserError if there is none, or a choice is left."""
    folders = find_newest(spec.path)
    if not folders:
        raise UserError(
            f"{spec.path}: no prepared dataset there ({INFO}); pass its folder, or its name and "
            "--data_dir"
        )
    return only_one(spec.path, folders)


def ranges(spec: SourceSpec, path: Path) -> Iterator[Range]:
    """Yields ranges of records, which count from 0 in each file."""
    _, count = _records(spec, path)
    check_length(path, count)
    size = size_of(path)
    return cut_positions(path, (size * (n + 1) // count - size * n // count for n in range(count)))


def _records(spec: SourceSpec, path: Path) -> tuple[int, int]:
    """Returns the number of records of the split before a file, and that in the file."""
    info = info_of(path.parent)
    number = files_of(info, spec.split).index(path.name)
    lengths = info.splits[spec.split].shard_lengths
    return sum(lengths[:number]), lengths[number]


def read(spec: SourceSpec, part: Range) -> Iterator[Document]:
    """Yields the documents of the records of one range."""
    first, count = _records(spec, part.path)
    start, stop = part.start, count if part.stop is None else part.stop
    names = column_names(spec)
    records = read_records([part.path], spec.split, names, first + start, first + stop)
    for number, record in enumerate(records, start=start):
        where = f"{part.path}: record {number}"
        values = {name: text_of(where, name, record[name]) for name in names}
        yield row_document(where, spec, values)


KIND: Final = Kind(
    find,
    read,
    ranges,
    options=(TEXT, TITLE, SPLIT),
    locate=_dataset_path,
    plain_text=False,
    packages=("tensorflow-datasets",),
)
