"""Files of vectors: `.npy` for one vector a line, `.parquet` for one a token."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bert_jax.errors import UserError, count
from bert_jax.storage.outputs import OutputKind

VECTORS: Final = OutputKind("file of vectors", None, in_buckets=False)


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
        join: joins the files of blocks to a new file; returns its size in words.
    """

    check: Callable[[], object]
    to_bytes: Callable[[Any], bytes]
    join: Callable[[list[Path], Path], str]


def _npy_bytes(vectors: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, vectors)
    return stream.getvalue()


def _join_npy(parts: list[Path], out: Path) -> str:
    blocks = [np.load(part, mmap_mode="r") for part in parts]
    lines, width = sum(len(block) for block in blocks), blocks[0].shape[1]
    header = {"descr": "<f4", "fortran_order": False, "shape": (lines, width)}
    with out.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(block.tobytes())
    return f"{count(lines, 'vector')} of {width:,} numbers"


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


def _join_parquet(parts: list[Path], out: Path) -> str:
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
