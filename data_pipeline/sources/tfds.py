"""Source kind `tfds`: a prepared dataset of TensorFlow Datasets; each record is a document.

Only the file format array_record is read, which needs no TensorFlow, and nothing is downloaded or
prepared. Its reader opens only local files, so that a file in a bucket is copied to the local cache
first.
"""

import functools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from bert_jax.data_pipeline.errors import UserError, first_few, nearest
from bert_jax.data_pipeline.sources.cutting import cut_positions
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.extras import import_extra
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.rows import (
    BATCH,
    check_columns,
    column_names,
    not_text,
    row_document,
)
from bert_jax.data_pipeline.storage.files import objects, path_of, size_of
from bert_jax.data_pipeline.storage.local_copy import local_folder
from bert_jax.data_pipeline.storage.remote import is_remote, storage_errors
from bert_jax.data_pipeline.text.clean import Rule

RULES: tuple[Rule, ...] = ()
PLAIN_TEXT = False
MARKUP = False
OPTIONS: tuple[str, ...] = ("text", "title", "split")
LIBRARIES: tuple[str, ...] = ()
CUT_BECAUSE = CUT_REMEDY = ""
INFO: Final = "dataset_info.json"
FEATURES: Final = "features.json"
_FORMAT: Final = "array_record"
_DEPTH: Final = 3  # levels that are searched: the path itself, configuration, version
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
_SHOWN: Final = 5  # names of configurations in a message


def dataset_path(text: str, data_dir: str) -> str:
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
    info = _info(folder)
    found = str(info.file_format.value if info.file_format else "unknown")
    if found != _FORMAT:
        raise UserError(
            f"{folder}: prepared as {found}, which needs TensorFlow; prepare it again with "
            f"tfds build {info.name} --file_format={_FORMAT}"
        )
    if spec.split not in info.splits:
        raise UserError(f"{folder}: no split {spec.split!r}{nearest(spec.split, info.splits)}")
    if not info.splits[spec.split].num_examples:
        raise UserError(f"{folder}: split {spec.split!r} is empty; choose another with ,split=NAME")
    check_columns(folder, spec, sorted(info.features))
    for name in column_names(spec):
        feature = info.features[name]
        if feature.shape != () or np.dtype(feature.np_dtype) != object:
            raise not_text(folder, name, str(feature))
    return Found([folder / name for name in _files(info, spec)], {})


def _files(info: Any, spec: SourceSpec) -> list[str]:
    """Returns the names of the files of a split, in the order of its records."""
    return [os.path.basename(path) for path in info.splits[spec.split].filepaths]


def _prepared(spec: SourceSpec) -> Path:
    """Returns the folder of the newest version; UserError if there is none, or a choice is left."""
    folders = _newest(_places(spec.path))
    if not folders:
        raise UserError(
            f"{spec.path}: no prepared dataset there ({INFO}); pass its folder, or its name and "
            "--data_dir"
        )
    if len(folders) > 1:
        shown = first_few(sorted(folders), _SHOWN)
        raise UserError(
            f"{spec.path}: has {len(folders)} configurations ({', '.join(shown)}); add the one to "
            f"read, as in {spec.path.name}/{shown[0]}"
        )
    return next(iter(folders.values()))


def _newest(places: list[Path]) -> dict[str, Path]:
    """Returns the newest version of each configuration, by its name."""
    newest: dict[str, Path] = {}
    for folder in sorted(places, key=lambda path: _number(path.name)):
        is_version = _VERSION.fullmatch(folder.name)
        newest[folder.parent.name if is_version else folder.name] = folder
    return newest


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


def _info(folder: Path) -> Any:
    """Returns what a dataset says of itself (DatasetInfo)."""
    return _builder(local_folder([folder / INFO, folder / FEATURES])).info


@functools.lru_cache(maxsize=4)
def _builder(folder: Path) -> Any:
    import tensorflow_datasets as tfds

    try:
        with storage_errors(folder):
            return tfds.builder_from_directory(folder)
    except (ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{folder}: {INFO} or {FEATURES} is damaged ({reason})") from None


def ranges(spec: SourceSpec, path: Path) -> Iterator[Range]:
    """Yields ranges of records, which count from 0 in each file."""
    _, count = _records(spec, path)
    size = size_of(path)
    return cut_positions(path, (size * (n + 1) // count - size * n // count for n in range(count)))


def _records(spec: SourceSpec, path: Path) -> tuple[int, int]:
    """Returns the number of records of the split before a file, and that in the file."""
    info = _info(path.parent)
    number = _files(info, spec).index(path.name)
    lengths = info.splits[spec.split].shard_lengths
    return sum(lengths[:number]), lengths[number]


def read(spec: SourceSpec, part: Range) -> Iterator[Document]:
    """Yields the documents of the records of one range."""
    import tensorflow_datasets as tfds

    first, count = _records(spec, part.path)
    start, stop = part.start, count if part.stop is None else part.stop
    if start == stop:  # a shard may be empty, a split of a data source not
        return
    folder = part.path.parent
    builder = _builder(local_folder([folder / INFO, folder / FEATURES, part.path]))
    unread = builder.info.features.keys() - set(column_names(spec))
    records = builder.as_data_source(
        split=f"{spec.split}[{first + start}:{first + stop}]",
        decoders={name: tfds.decode.SkipDecoding() for name in unread},
    )
    for at in range(0, stop - start, BATCH):
        numbers = range(at, min(at + BATCH, stop - start))
        for number, record in zip(numbers, _some(part.path, records, numbers), strict=True):
            where = f"{part.path}: record {start + number}"
            yield row_document(where, spec, _decoded(where, spec, record))


def _some(path: Path, records: Any, numbers: range) -> list[Any]:
    try:
        found: list[Any] = records.__getitems__(list(numbers))
    except (RuntimeError, LookupError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: cannot be read ({reason}); copy the dataset again") from None
    return found


def _decoded(where: str, spec: SourceSpec, record: Mapping[str, bytes | None]) -> dict[str, str]:
    """Returns the values that are read; the reader returns None where a file is damaged."""
    values = {}
    for name in column_names(spec):
        value = record[name]
        if value is None:
            raise UserError(f"{where} is damaged; copy the dataset again")
        try:
            values[name] = value.decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{where}: {name!r} is not UTF-8 ({error})") from None
    return values
