"""Reads the tensors of a TensorFlow checkpoint: PREFIX.index and PREFIX.data-00000-of-00001.

The index has an entry for each tensor, a protocol buffer BundleEntryProto with its type, shape,
place and checksum: tensorflow/core/protobuf/tensor_bundle.proto. There is no well-kept library
that reads them without TensorFlow.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import google_crc32c
import ml_dtypes
import numpy as np
from etils import epath

from bert_jax.convert.tensorflow.table import read_table, unmasked
from bert_jax.data_pipeline.settings import shown_name
from bert_jax.errors import UserError
from bert_jax.storage.protobuf import fields
from bert_jax.storage.read_files import open_bytes, read_bytes, size_of
from bert_jax.storage.remote import storage_errors

# By the numbers of DataType, tensorflow/core/framework/types.proto; others cannot be read.
_DTYPES: Mapping[int, Any] = {
    1: np.float32, 2: np.float64, 3: np.int32, 9: np.int64, 14: ml_dtypes.bfloat16, 19: np.float16,
}  # fmt: skip
_AGAIN = "copy or download the checkpoint again"


@dataclass(frozen=True)
class Entry:
    """The location of a tensor; `dtype` is None for a kind that cannot be read, such as text."""

    dtype: np.dtype | None
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int  # bytes
    crc: int


class TensorFlowCheckpoint:
    """A checkpoint, open for reading.

    Attributes:
        entries: by name of the tensor.
    """

    def __init__(self, prefix: epath.PathLike) -> None:
        """prefix: the path without ".index", local or in a bucket.

        Raises:
            UserError: the index is missing, damaged, or written on a big-endian machine.
        """
        self.prefix = epath.Path(prefix)
        self._index = self._file("index")
        with storage_errors(self._index, "cannot be read"):
            data = read_bytes(self._index)
        try:
            table = read_table(data)
            self._shards = _shards(table.pop(b"", b""))
            # All entries first: the parts of a tensor in slices have names that are no text.
            entries = {name: _entry(value) for name, value in table.items()}
            self.entries = {name.decode(): entry for name, entry in entries.items()}
        except ValueError as error:
            raise UserError(f"{self._index}: cannot be used ({error}); {_AGAIN}") from None

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor, its checksum verified.

        Raises:
            UserError: no such tensor, a kind that is not numbers, or its file is missing, too short
                or damaged.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise UserError(f"{self._index}: lists no {shown_name(name)}")
        if entry.dtype is None:
            raise UserError(
                f"{self._index}: {shown_name(name)} does not hold numbers of a known kind"
            )
        file = self._file(f"data-{entry.shard:05}-of-{self._shards:05}")
        with storage_errors(file, "cannot be read"):
            if size_of(file) < entry.offset + entry.size:
                raise UserError(f"{file}: ends before {shown_name(name)}; {_AGAIN}")
            with open_bytes(file) as stream:
                stream.seek(entry.offset)
                data = stream.read(entry.size)
        if google_crc32c.value(data) != entry.crc:
            raise UserError(f"{file}: the checksum of {shown_name(name)} is wrong; {_AGAIN}")
        return np.frombuffer(data, entry.dtype).reshape(entry.shape)

    def _file(self, suffix: str) -> epath.Path:
        return self.prefix.parent / f"{self.prefix.name}.{suffix}"


class LazyTensor:
    """Shape and dtype of a tensor in a checkpoint; `np.asarray` reads it."""

    def __init__(self, checkpoint: TensorFlowCheckpoint, name: str, *, transposed: bool = False):
        self._checkpoint, self._name, self._transposed = checkpoint, name, transposed
        entry = checkpoint.entries[name]
        self.shape = entry.shape[::-1] if transposed else entry.shape
        self.dtype = entry.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Returns the tensor; errors as `TensorFlowCheckpoint.read`."""
        tensor = self._checkpoint.read(self._name)
        return np.asarray(tensor.T if self._transposed else tensor, dtype)


def _shards(header: bytes) -> int:
    """Returns the number of data files from a BundleHeaderProto."""
    values = dict(fields(header))
    if values.get(2, 0) != 0:
        raise ValueError("its numbers are big-endian")
    shards = values.get(1, 0)
    if not isinstance(shards, int) or not 1 <= shards <= 99_999:
        raise ValueError("it does not say how many data files there are")
    return shards


def _entry(data: bytes) -> Entry:
    """Parses a BundleEntryProto."""
    values: dict[int, int] = {}
    shape: tuple[int, ...] = ()
    for field, value in fields(data):
        if field == 7:
            raise ValueError("a tensor is stored in slices; merge the checkpoint first")
        if field == 2:
            shape = _shape(_bytes(value))
        else:
            values[field] = _number(value)
    number = values.get(1, 0)
    dtype = np.dtype(_DTYPES[number]) if number in _DTYPES else None
    entry = Entry(
        dtype, shape, values.get(3, 0), values.get(4, 0), values.get(5, 0),
        unmasked(values.get(6, 0)),
    )  # fmt: skip
    if dtype is not None and math.prod(shape) * dtype.itemsize != entry.size:
        raise ValueError("the size of a tensor does not fit its shape")
    return entry


def _shape(data: bytes) -> tuple[int, ...]:
    """Parses a TensorShapeProto, whose field 2 is a dimension with its size in field 1."""
    dimensions = [dict(fields(_bytes(value))) for field, value in fields(data) if field == 2]
    return tuple(_number(dimension.get(1, 0)) for dimension in dimensions)


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("an entry has text in place of a number")
    return value


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("an entry has a number in place of a shape")
    return value
