"""Reads and writes .npz files: arrays of numbers and text, which are never unpickled.

Sizes are compared before anything of that size is allocated: those of an array with those of its
member in the zip, and these with what its compressed bytes can hold.
"""

import io
import math
import zipfile
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from etils import epath

from bert_jax.storage.read_files import open_bytes
from bert_jax.storage.reader_errors import NPZ_ERRORS, one_line

_END: Final = ".npy"
_MOST_RATIO: Final = 1032  # of deflate: 258 bytes from 2 bits
_HEADERS: Final[Mapping[tuple[int, int], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(path: epath.PathLike) -> dict[str, np.ndarray]:
    """Returns the arrays of a file, local or in a bucket, by name.

    Raises:
        ValueError: it is no .npz file, is damaged, or has an array of Python objects.
        OSError: it cannot be opened.
    """
    with open_bytes(path) as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                return _arrays(archive)
        except NPZ_ERRORS as error:
            raise ValueError(one_line(error)) from error


def npz_bytes(arrays: Mapping[str, np.ndarray], *, compressed: bool = False) -> bytes:
    """Returns the content of a file with arrays by name, none of them of Python objects."""
    assert not any(array.dtype.hasobject for array in arrays.values())
    # NumPy before 2.2 takes its flag against pickling for one more array.
    save: Any = np.savez_compressed if compressed else np.savez
    data = io.BytesIO()
    save(data, **arrays)
    return data.getvalue()


def names_in(path: epath.PathLike) -> set[str]:
    """Returns the names of the arrays in a file, which are not read; errors as `read_npz`."""
    with open_bytes(path) as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                return {name.removesuffix(_END) for name in archive.namelist()}
        except NPZ_ERRORS as error:
            raise ValueError(one_line(error)) from error


def _arrays(archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
    arrays = dict[str, np.ndarray]()
    for member in archive.infolist():
        name = member.filename.removesuffix(_END)
        if name == member.filename or name in arrays:
            raise ValueError(f"{name!r} is no array, or is there twice")
        if member.file_size > _MOST_RATIO * member.compress_size:
            raise ValueError(f"{name!r} is larger than its compressed bytes can hold")
        arrays[name] = _array(archive, member)
    return arrays


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"format {version} of .npy")
        shape, fortran_order, dtype = _HEADERS[version](stream)
        size = member.file_size - stream.tell()
        expected = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or min(shape, default=0) < 0 or expected != size:
            raise ValueError(f"{member.filename} has not the size of {shape} of {dtype}")
        data = bytearray(stream.read())  # verifies the checksum at its end
    return np.ndarray(shape, dtype, data, order="F" if fortran_order else "C")
