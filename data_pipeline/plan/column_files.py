"""A folder of columns: one-dimensional `.npy` files written incrementally, with checksums.

Each process writes a folder under a unique temporary name and renames it when it is complete, so
several processes may race. A memory-mapped file stays readable after its folder is removed.
"""

import contextlib
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from bert_jax.errors import UserError
from bert_jax.storage import json_record
from bert_jax.storage.atomic import publish
from bert_jax.storage.regular_file import open_regular

Put = Callable[[str, np.ndarray], None]  # appends values to the named column
LAYOUT: Final = 2  # format version of a folder; version 1 did not record the folder's name
_MANIFEST: Final = "plan.json"
_CHUNK: Final = 1 << 20  # bytes per read


class _Column:
    """A `.npy` file whose length is known only at the end."""

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self._dtype, self._length, self._crc = dtype, 0, 0
        self._file: BinaryIO = path.open("wb")
        self._write_header()
        self._start = self._file.tell()

    def _write_header(self) -> None:
        # numpy pads the header so that any length fits.
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, values: np.ndarray) -> None:
        data = np.ascontiguousarray(values, self._dtype).view(np.uint8).data
        self._file.write(data)
        self._crc = zlib.crc32(data, self._crc)
        self._length += len(values)

    def finish(self) -> str:
        """Completes the file; returns its checksum."""
        self._file.seek(0)
        self._write_header()
        if self._file.tell() != self._start:
            raise ValueError(f"{self._file.name}: header size changed for {self._length} elements")
        self._file.close()
        return _checksum(self._dtype, self._length, self._crc)

    def close(self) -> None:
        self._file.close()


def _checksum(dtype: np.dtype, length: int, crc: int) -> str:
    return f"{dtype.str} {length} {crc:08x}"


def keep(
    folder: Path, columns: Mapping[str, np.dtype], fill: Callable[[Put], None]
) -> dict[str, np.ndarray]:
    """Writes a folder of columns with `fill`; returns the columns, memory-mapped.

    If another process has already finished the same folder, that one stays.

    Raises:
        UserError: the folder cannot be written.
    """
    temporary = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.tmp")
    files: dict[str, _Column] = {}
    try:
        temporary.mkdir(parents=True)
        for name, dtype in columns.items():
            files[name] = _Column(temporary / f"{name}.npy", np.dtype(dtype))
        fill(lambda name, values: files[name].append(values))
        checksums = {name: file.finish() for name, file in files.items()}
        manifest = {"name": folder.name, "columns": checksums}
        (temporary / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        mapped: dict[str, np.ndarray] = {name: _map(temporary, name) for name in columns}
    except BaseException as error:
        for file in files.values():
            file.close()
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise UserError(
                f"cannot write a plan to {folder.parent} ({error.strerror}): "
                "free some space there, or choose another cache folder"
            ) from error
        raise
    _publish(temporary, folder, columns)
    return mapped


def find(folder: Path, columns: Mapping[str, np.dtype]) -> dict[str, np.ndarray] | None:
    """Returns the memory-mapped columns of a folder; None if a checksum does not match, or if the
    folder was written under another name (the name identifies the columns' inputs)."""
    try:
        manifest = json_record.read_json(folder / _MANIFEST)
        if manifest["name"] != folder.name or set(manifest["columns"]) != set(columns):
            return None
        mapped: dict[str, np.ndarray] = {}
        for name, dtype in columns.items():
            column = mapped[name] = _map(folder, name)
            if column.ndim != 1 or column.dtype != dtype:
                return None
            if _checksum_of(folder / f"{name}.npy", column) != manifest["columns"][name]:
                return None
    except Exception:  # numpy and json may raise any exception on corrupted bytes
        return None
    return mapped


def _map(folder: Path, name: str) -> np.memmap:
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="r")


def _checksum_of(path: Path, column: np.memmap) -> str:
    """Reads the file for its checksum; reading the map would make all of it resident in memory."""
    crc = 0
    with open_regular(path) as file:
        file.seek(column.offset)
        while data := file.read(_CHUNK):
            crc = zlib.crc32(data, crc)
    return _checksum(column.dtype, column.size, crc)


def remove(folder: Path) -> None:
    """Removes a folder (or a file or link of its name), atomically for other processes; does
    nothing if it does not exist."""
    doomed = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.removed")
    with contextlib.suppress(OSError):
        folder.rename(doomed)
        if doomed.is_dir() and not doomed.is_symlink():
            shutil.rmtree(doomed, ignore_errors=True)
        else:
            doomed.unlink()


def _publish(temporary: Path, folder: Path, columns: Mapping[str, np.dtype]) -> None:
    """Moves a finished folder into place; of several processes the first wins."""
    with contextlib.suppress(OSError):
        if os.path.lexists(folder) and find(folder, columns) is None:
            remove(folder)
        publish(temporary, folder)
        return
    shutil.rmtree(temporary, ignore_errors=True)
