"""Sources whose documents are rows: every kind reads the same rows, wherever its files are cut."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import prepared_dataset
import pyarrow as pa
import pytest
from row_files import (
    Rows,
    write_arrow,
    write_csv,
    write_jsonl,
    write_parquet,
    write_saved,
)

from bert_jax.data_pipeline.sources import cutting, find, parse_source, ranges, read, read_range
from bert_jax.data_pipeline.sources.document import Document

ROWS = [
    {"id": n, "text": f'Row {n},\nline; "two\u201d\t{n}.' * (n % 4), "head": f"T{n}"}
    for n in range(40)
]
WANTED = [Document(row["text"], row["head"]) for row in ROWS]


def write_file_of_arrow(path: Path, rows: Rows) -> None:
    write_arrow(path, rows, pa.ipc.new_file)


def write_splits(folder: Path, rows: Rows) -> None:
    """As `DatasetDict.save_to_disk`."""
    folder.mkdir()
    write_saved(folder / "train", rows)
    write_saved(folder / "test", rows[:2])
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))


def write_prepared(folder: Path, rows: Rows) -> None:
    """Shards of several lengths, one of them empty; an older version and another split beside."""
    shards = [rows[:3], [], rows[3:30], rows[30:]]
    splits = {"test": [rows[:2]], "train": shards}
    prepared_dataset.write(folder / "1.10.0", splits, numbers=("id",))
    prepared_dataset.write(folder / "1.9.0", {"train": [rows[:1]]}, numbers=("id",))


WRITERS: dict[str, tuple[str, Callable[[Path, Rows], None]]] = {
    "rows.jsonl": ("jsonl", write_jsonl),
    "rows.json.gz": ("jsonl", write_jsonl),
    "rows.jsonl.bz2": ("jsonl", write_jsonl),
    "rows.jsonl.xz": ("jsonl", write_jsonl),
    "rows.jsonl.zst": ("jsonl", write_jsonl),
    "rows.csv": ("csv", write_csv),
    "rows.csv.zst": ("csv", write_csv),
    "rows.tsv": ("csv", write_csv),
    "rows.parquet": ("parquet", write_parquet),
    "stream.arrow": ("arrow", write_arrow),
    "file.arrow": ("arrow", write_file_of_arrow),
    "saved": ("arrow", write_saved),
    "splits": ("arrow", write_splits),
    "prepared": ("tfds", write_prepared),
}
CUT = ("rows.jsonl", "rows.parquet", "stream.arrow", "file.arrow", "saved", "splits", "prepared")


@pytest.mark.parametrize("target", [1, 300, cutting.RANGE_BYTES])
@pytest.mark.parametrize("name", WRITERS)
def test_every_form_has_the_same_documents_wherever_it_is_cut(
    name: str, target: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "RANGE_BYTES", target)
    kind, write = WRITERS[name]
    write(tmp_path / name, ROWS)
    spec = parse_source(f"{kind}:{tmp_path / name},title=head")
    files = find(spec).files
    parts = [part for file in files for part in ranges(spec, file)]
    assert [document for part in parts for document in read_range(spec, part)] == WANTED
    assert [document for file in files for document in read(spec, file)] == WANTED
    assert (len(parts) > len(files)) == (target < 1000 and name in CUT)
    assert "tensorflow" not in sys.modules
