"""Files of rows, one writer per kind of source: the same rows in every form."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

Rows = Sequence[Mapping[str, Any]]
GROUP = 7  # rows of a row group or a record batch


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


def write_jsonl(path: Path, rows: Rows) -> None:
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(text.encode()))


def write_csv(path: Path, rows: Rows) -> None:
    text = io.StringIO(newline="")
    delimiter = "\t" if ".tsv" in path.name else ","
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(text.getvalue().encode()))


def write_parquet(path: Path, rows: Rows) -> None:
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=GROUP)


def write_arrow(path: Path, rows: Rows, new: Callable = pa.ipc.new_stream) -> None:
    table = pa.Table.from_pylist(rows)
    with new(path, table.schema) as writer:
        writer.write_table(table, GROUP)


def write_saved(folder: Path, rows: Rows) -> None:
    """As `Dataset.save_to_disk` of `datasets` with two shards; with a file that is not part of it,
    as `Dataset.map` leaves."""
    folder.mkdir()
    names = [f"data-0000{number}-of-00002.arrow" for number in range(2)]
    half = len(rows) // 2
    for name, part in zip(names, (rows[:half], rows[half:]), strict=True):
        write_arrow(folder / name, part)
    write_arrow(folder / "cache-0123456789abcdef.arrow", rows[:1])
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
