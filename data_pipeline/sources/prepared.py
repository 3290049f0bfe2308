"""Prepared datasets of TensorFlow Datasets, of which the file format array_record is read.

This format needs no TensorFlow, and nothing is downloaded or prepared. Its reader opens only local
files, so that a file in a bucket is copied to the local cache first.
"""

import functools
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bert_jax.data_pipeline.sources.extras import import_extra
from bert_jax.data_pipeline.sources.rows import BATCH
from bert_jax.errors import UserError, first_few, nearest
from bert_jax.storage import json_record
from bert_jax.storage.local_copy import local_folder
from bert_jax.storage.read_files import objects, path_of, size_of
from bert_jax.storage.reader_errors import ANY_ERRORS, reader_errors
from bert_jax.storage.remote import is_remote, storage_errors

INFO: Final = "dataset_info.json"
FEATURES: Final = "features.json"
_FORMAT: Final = "array_record"
_DEPTH: Final = 3  # levels that are searched: the path itself, configuration, version
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
_MOST_PER_BYTE: Final = 64  # records; more than compression makes of records that have text
_AGAIN: Final = "copy the dataset again"
# A template without a folder: the files are beside dataset_info.json.
_TEMPLATE: Final = re.compile(r"[\w.-]*(\{[A-Z_]+\}[\w.-]*)+")
_INFO_FORM: Final = {
    "name": json_record.file_name,
    "fileFormat?": json_record.text,
    "splits?": [
        {
            "name": json_record.file_name,
            "shardLengths?": [lambda value: isinstance(value, str) and value.isdecimal()],
            "filepathTemplate?": lambda value: (
                isinstance(value, str) and _TEMPLATE.fullmatch(value)
            ),
        }
    ],
}
_SHOWN: Final = 5  # names of configurations in a message


def find_newest(path: Path) -> dict[str, Path]:
    """Returns the folders at or below a path that have a prepared dataset: of each configuration,
    by its name, the newest version."""
    newest: dict[str, Path] = {}
    for folder in sorted(_places(path), key=lambda place: _number(place.name)):
        is_version = _VERSION.fullmatch(folder.name)
        newest[folder.parent.name if is_version else folder.name] = folder
    return newest


def only_one(path: Path, folders: Mapping[str, Path]) -> Path:
    """Returns the folder of the only configuration; UserError, which lists them, of several."""
    if len(folders) > 1:
        shown = first_few(sorted(folders), _SHOWN)
        raise UserError(
            f"{path}: has {len(folders)} configurations ({', '.join(shown)}); add the one to "
            f"read, as in {path.name}/{shown[0]}"
        )
    return next(iter(folders.values()))


def _number(version: str) -> list[int]:
    return [int(digits) for digits in version.split(".")] if _VERSION.fullmatch(version) else []


def _places(path: Path) -> list[Path]:
    """Returns the folders at or below a path that have a prepared dataset."""
    if is_remote(path):
        with storage_errors(path):
            names = objects(path)
        found = [name for name in names if os.path.basename(name) == INFO]
        return [path_of(os.path.dirname(f"{path}/{name}")) for name in found]
    patterns = ["/".join([*["*"] * depth, INFO]) for depth in range(_DEPTH)]
    return [file.parent for pattern in patterns for file in path.glob(pattern)]


def info_of(folder: Path, further: Sequence[str] = ()) -> Any:
    """Returns what a dataset says of itself (DatasetInfo).

    Args:
        further: files that describe it beside the two of every dataset, such as names of labels.

    Raises:
        UserError: the extra is not installed, or the folder's descriptions are damaged.
    """
    import_extra("tensorflow_datasets", "tfds", "prepared datasets")
    return _builder(local_folder([folder / name for name in (INFO, FEATURES, *further)])).info


@functools.lru_cache(maxsize=4)
def _builder(folder: Path) -> Any:
    import tensorflow_datasets as tfds

    what = f"{INFO} or {FEATURES} is damaged"
    with reader_errors(folder, ANY_ERRORS, what, _AGAIN), storage_errors(folder):
        for name, form in ((INFO, _INFO_FORM), (FEATURES, dict)):
            json_record.read_json(folder / name, form)
        return tfds.builder_from_directory(folder)


def full_name(info: Any) -> str:
    """Returns the name of a dataset as `tfds.load` takes it, without the version: glue/sst2."""
    return f"{info.name}/{info.config_name}" if info.config_name else str(info.name)


def check_split(folder: Path, info: Any, split: str) -> None:
    """Raises UserError if a split is not there, or is in a file format that needs TensorFlow."""
    found = str(info.file_format.value if info.file_format else "unknown")
    if found != _FORMAT:
        raise UserError(
            f"{folder}: prepared as {found}, which needs TensorFlow; prepare it again with "
            f"tfds build {full_name(info)} --file_format={_FORMAT}"
        )
    if split not in info.splits:
        raise UserError(f"{folder}: no split {split!r}{nearest(split, info.splits)}")


def files_of(info: Any, split: str) -> list[str]:
    """Returns the names of the files of a split, in the order of its records."""
    with reader_errors(info.name, ANY_ERRORS, f"split {split!r} is damaged in {INFO}", _AGAIN):
        return [os.path.basename(path) for path in info.splits[split].filepaths]


def check_length(path: Path, records: int) -> None:
    """Raises UserError if a file cannot have this number of records."""
    with storage_errors(path):
        size = size_of(path)
    if records > _MOST_PER_BYTE * size:
        raise UserError(f"{path}: {INFO} says {records:,} records in its {size:,} bytes; {_AGAIN}")


def _check_records(path: Path, records: int) -> None:
    """Raises UserError if a local file has not this number of records."""
    from array_record.python.array_record_module import ArrayRecordReader

    with reader_errors(path, ANY_ERRORS, "cannot be read", _AGAIN):
        reader = ArrayRecordReader(str(path))
        found = reader.num_records()
        reader.close()
    if found != records:
        raise UserError(f"{path}: {found:,} records, but {INFO} says {records:,}; {_AGAIN}")


def is_text(feature: Any) -> bool:
    """Returns whether the values of a feature are strings."""
    import numpy as np  # not for the help of `data build`, which lists this kind

    return feature.shape == () and np.dtype(feature.np_dtype) == object


def read_records(
    files: Sequence[Path], split: str, names: Collection[str], start: int, stop: int
) -> Iterator[Mapping[str, Any]]:
    """Yields records of a split, which count from 0, with the values of the named features.

    Text is bytes; every value is None where a file is damaged.

    Args:
        files: those that have these records, of one folder.

    Raises:
        UserError: a file cannot be read.
    """
    import tensorflow_datasets as tfds

    if start == stop:  # a shard may be empty, a split of a data source not
        return
    folder = files[0].parent
    local = local_folder([folder / INFO, folder / FEATURES, *files])
    builder = _builder(local)
    lengths = dict(
        zip(files_of(builder.info, split), builder.info.splits[split].shard_lengths, strict=True)
    )
    for file in files:
        _check_records(local / file.name, lengths[file.name])
    records = builder.as_data_source(
        split=f"{split}[{start}:{stop}]",
        decoders={
            name: tfds.decode.SkipDecoding() for name in builder.info.features if name not in names
        },
    )
    where = files[0] if len(files) == 1 else folder
    for at in range(0, stop - start, BATCH):
        with reader_errors(where, ANY_ERRORS, "cannot be read", _AGAIN):
            some = records.__getitems__(list(range(at, min(at + BATCH, stop - start))))
        yield from some


def check_value(where: str, value: Any) -> Any:
    """Returns a value of a record; UserError if the file is damaged there."""
    if value is None:
        raise UserError(f"{where} is damaged; copy the dataset again")
    return value


def text_of(where: str, name: str, value: bytes | None) -> str:
    """Returns a text of a record; UserError if it is not UTF-8 or the file is damaged there."""
    try:
        return str(check_value(where, value).decode())
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: {name!r} is not UTF-8 ({error})") from None
