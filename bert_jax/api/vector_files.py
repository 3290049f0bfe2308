"""Files of vectors: `.npy` for one vector a line, `.parquet` for one a token.

Vectors of int8 codes have their ranges, float32 [2, D], in `NAME.ranges.npy` beside `NAME.npy`.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bert_jax.api.small_vectors import Dtype, to_bits, to_int8
from bert_jax.errors import UserError, count
from bert_jax.storage.outputs import OutputKind, write_output
from bert_jax.storage.read_files import open_bytes
from bert_jax.storage.reader_errors import NPZ_ERRORS, reader_errors
from bert_jax.storage.remote import is_remote, storage_errors

VECTORS: Final = OutputKind("file of vectors", None, in_buckets=False)
_NUMBERS: Final = {"float32": "number", "int8": "int8 code", "binary": "bit"}
_HEADERS: Final[Mapping[tuple[int, int], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True)
class TokenTable:
    """The tokens of texts: row of the file from 0, text, and of each token, with [CLS] and [SEP],
    its name and state [tokens, D]; `spans` leaves out [CLS] and [SEP], as `Tokens.spans`."""

    rows: list[int]
    texts: list[str]
    tokens: list[list[str]]
    spans: list[np.ndarray]
    states: list[np.ndarray]


@dataclass(frozen=True)
class Format:
    """A file format for blocks of vectors.

    Attributes:
        check: raises UserError if a package is missing.
        to_bytes: returns a block as a file's bytes.
        join: (files of blocks, new file, dtype of its vectors, ranges if that is int8) -> its size
            in words.
    """

    check: Callable[[], object]
    to_bytes: Callable[[Any], bytes]
    join: Callable[[Sequence[Path], Path, Dtype, np.ndarray | None], str]


@dataclass(frozen=True)
class Vectors:
    """The vectors in a file, N of D dimensions.

    Attributes:
        stored: memory-mapped: floats or int8 [N, D], or uint8 [N, D / 8].
        ranges: float32 [2, D], of int8.
    """

    path: Path
    stored: np.ndarray
    ranges: np.ndarray | None

    @property
    def width(self) -> int:
        """Returns D."""
        return int(self.stored.shape[1]) * (8 if self.stored.dtype == np.uint8 else 1)


def ranges_path(path: Path) -> Path:
    """Returns the file with the ranges of the vectors in another."""
    return path.with_suffix(f".ranges{path.suffix}")


def open_vectors(path: Path) -> Vectors:
    """Opens a file of vectors, and reads the ranges of int8 codes.

    Raises:
        UserError: it is no .npy file of vectors in floats, int8 or uint8, is damaged, or has no
            file of ranges that fits.
    """
    stored = _mapped(path)
    if stored.ndim != 2 or not stored.size:
        shape = " x ".join(map(str, stored.shape)) or "one number"
        raise UserError(f"{path}: {shape}, but vectors are rows of numbers; give those of embed")
    if stored.dtype not in (np.int8, np.uint8) and stored.dtype.kind != "f":
        raise UserError(f"{path}: {stored.dtype}; vectors are floats, int8 codes or bits in uint8")
    ranges = None
    if stored.dtype == np.int8:
        where = ranges_path(path)
        if not where.exists():
            raise UserError(f"{path}: int8 codes need their ranges in {where}; embed wrote both")
        ranges = np.array(_mapped(where), np.float32)
        if ranges.shape != (2, stored.shape[1]) or not np.isfinite(ranges).all():
            raise UserError(
                f"{where}: not the lowest and highest value of {stored.shape[1]:,} dimensions; "
                f"embed again"
            )
    return Vectors(path, stored, ranges)


def _mapped(path: Path) -> np.ndarray:
    """Returns the array in a .npy file, without reading it."""
    if is_remote(path):
        raise UserError(f"{path}: vectors are read from a local disk; copy the file there")
    what, remedy = "is not a whole .npy file", "give one that embed or np.save wrote"
    with (
        storage_errors(path),
        open_bytes(path) as stream,
        reader_errors(path, NPZ_ERRORS, what, remedy),
    ):
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"format {version}")
        shape, is_fortran, dtype = _HEADERS[version](stream)
        if dtype.hasobject or min(shape, default=0) < 0:
            raise ValueError(f"{shape} of {dtype}")
        if 0 in shape:
            return np.empty(shape, dtype)
        file: Any = stream
        return np.memmap(file, dtype, "r", stream.tell(), shape, "F" if is_fortran else "C")


def _npy_bytes(vectors: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, vectors)
    return stream.getvalue()


def write_ranges(out: Path, parts: Sequence[Path], *, overwrite: bool) -> np.ndarray:
    """Writes, beside the file of vectors `out`, the smallest and the largest value of each
    dimension in the files of blocks, and returns them, float32 [2, D]; errors as `write_output`."""
    blocks = [np.load(part, mmap_mode="r") for part in parts]
    low, high = [x.min(0) for x in blocks], [x.max(0) for x in blocks]
    ranges = np.stack([np.min(low, axis=0), np.max(high, axis=0)])
    write_output(ranges_path(out), _npy_bytes(ranges), VECTORS, overwrite=overwrite)
    return ranges


def _join_npy(parts: Sequence[Path], out: Path, dtype: Dtype, ranges: np.ndarray | None) -> str:
    blocks = [np.load(part, mmap_mode="r") for part in parts]
    lines, width = sum(len(block) for block in blocks), blocks[0].shape[1]
    kind, stored = {"float32": "<f4", "int8": "|i1", "binary": "|u1"}[dtype], width
    if dtype == "binary":
        stored //= 8
    header = {"descr": kind, "fortran_order": False, "shape": (lines, stored)}
    with out.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            made = block
            if dtype == "int8":
                assert ranges is not None
                made = to_int8(block, ranges)
            elif dtype == "binary":
                made = to_bits(block)
            file.write(made.tobytes())
    return f"{count(lines, 'vector')} of {count(width, _NUMBERS[dtype])}"


def _parquet_bytes(table: TokenTable) -> bytes:
    """Columns: row, text, token, start, end (null for [CLS] and [SEP]), vector."""
    arrow, parquet = _pyarrow()
    sizes = [len(tokens) for tokens in table.tokens]
    ends = [[(None, None), *spans.tolist(), (None, None)] for spans in table.spans]
    flat = [pair for text in ends for pair in text]
    states = np.concatenate(table.states)
    width = states.shape[1]
    columns = {
        "row": arrow.array(np.repeat(table.rows, sizes), arrow.int64()),
        "text": arrow.array(np.repeat(np.array(table.texts, object), sizes), arrow.string()),
        "token": arrow.array([name for text in table.tokens for name in text], arrow.string()),
        "start": arrow.array([start for start, _ in flat], arrow.int32()),
        "end": arrow.array([end for _, end in flat], arrow.int32()),
        "vector": arrow.FixedSizeListArray.from_arrays(states.reshape(-1), width),
    }
    stream = io.BytesIO()
    parquet.write_table(arrow.table(columns), stream)
    return stream.getvalue()


def _join_parquet(parts: Sequence[Path], out: Path, dtype: Dtype, ranges: np.ndarray | None) -> str:
    _, parquet = _pyarrow()
    tokens = 0
    first = parquet.read_schema(parts[0])
    with parquet.ParquetWriter(out, first) as writer:
        for part in parts:
            table = parquet.read_table(part)
            writer.write_table(table)
            tokens += table.num_rows
    return f"{count(tokens, 'token')} of {first.field('vector').type.list_size:,} numbers"


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            "a .parquet file needs pyarrow, which is not installed; pip install 'bert-jax[arrow]'"
        ) from None
    return pyarrow, pyarrow.parquet


FORMATS: Final[dict[str, Format]] = {
    ".npy": Format(lambda: None, _npy_bytes, _join_npy),
    ".parquet": Format(_pyarrow, _parquet_bytes, _join_parquet),
}
