"""A folder of columns: one-dimensional `.npy` files written piece by piece, with checksums.

Whoever makes a folder writes it under a name of its own and renames it when it is complete, so
that several processes may race. A file that is mapped stays readable when its folder is removed.
"""

import contextlib
import json
import shutil
import uuid
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from data_pipeline.errors import UserError

Put = Callable[[str, np.ndarray], None]  # append values to the column of a name
_MANIFEST: Final = "plan.json"
_CHUNK: Final = 1 << 20  # bytes read together


class _Column:
    """A `.npy` file of a length known only at the end."""

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self._dtype, self._length, self._crc = dtype, 0, 0
        self._file: BinaryIO = path.open("wb")
        self._write_header()
        self._start = self._file.tell()

    def _write_header(self) -> None:
        # numpy leaves room in a header for any length.
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, values: np.ndarray) -> None:
        data = np.ascontiguousarray(values, self._dtype).view(np.uint8).data
        self._file.write(data)
        self._crc = zlib.crc32(data, self._crc)
        self._length += len(values)

    def finish(self) -> str:
        """Complete the file; its checksum."""
        self._file.seek(0)
        self._write_header()
        if self._file.tell() != self._start:
            raise ValueError(f"{self._file.name}: a header of another size for {self._length}")
        self._file.close()
        return _checksum(self._dtype, self._length, self._crc)

    def close(self) -> None:
        self._file.close()


def _checksum(dtype: np.dtype, length: int, crc: int) -> str:
    return f"{dtype.str} {length} {crc:08x}"


def keep(
    folder: Path, columns: Mapping[str, np.dtype], fill: Callable[[Put], None]
) -> dict[str, np.ndarray]:
    """Have `fill` put values into the columns of a folder; the columns, memory-mapped.

    Where another process has finished the same folder before, that one stays. UserError where the
    folder cannot be written.
    """
    making = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.tmp")
    files: dict[str, _Column] = {}
    try:
        making.mkdir(parents=True)
        for name, dtype in columns.items():
            files[name] = _Column(making / f"{name}.npy", np.dtype(dtype))
        fill(lambda name, values: files[name].append(values))
        checksums = {name: file.finish() for name, file in files.items()}
        (making / _MANIFEST).write_text(json.dumps(checksums), encoding="utf-8")
        kept = {name: _map(making, name) for name in columns}
    except BaseException as error:
        for file in files.values():
            file.close()
        shutil.rmtree(making, ignore_errors=True)
        if isinstance(error, OSError):
            raise UserError(
                f"cannot write a plan to {folder.parent} ({error.strerror}): "
                "free some space there, or choose another cache folder"
            ) from error
        raise
    _publish(making, folder)
    return kept


def find(folder: Path) -> dict[str, np.ndarray] | None:
    """The columns in a folder, memory-mapped; None where any byte of it is not as written."""
    try:
        checksums = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        columns = {}
        for name, expected in checksums.items():
            columns[name] = _map(folder, name)
            if _checksum_of(folder / f"{name}.npy", columns[name]) != expected:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return columns


def _map(folder: Path, name: str) -> np.ndarray:
    column: np.ndarray = np.load(folder / f"{name}.npy", mmap_mode="r")
    return column


def _checksum_of(path: Path, column: np.ndarray) -> str:
    """By reading the file: looking at all of a map would make it part of the process' memory."""
    crc = 0
    with path.open("rb") as file:
        file.seek(path.stat().st_size - column.nbytes)
        while data := file.read(_CHUNK):
            crc = zlib.crc32(data, crc)
    return _checksum(column.dtype, column.size, crc)


def remove(folder: Path) -> None:
    """Remove a folder at once, as others see it; nothing happens where there is none."""
    doomed = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.removed")
    with contextlib.suppress(OSError):
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _publish(making: Path, folder: Path) -> None:
    """Move a finished folder into place; of several processes the first wins."""
    with contextlib.suppress(OSError):
        if folder.exists() and find(folder) is None:
            remove(folder)
        making.rename(folder)
        return
    shutil.rmtree(making, ignore_errors=True)
