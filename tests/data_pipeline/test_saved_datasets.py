"""Folders of prepared datasets whose rows are not those of their files, or with unknown files."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from bert_jax.data_pipeline.sources import arrow
from bert_jax.data_pipeline.sources.document import SourceSpec
from bert_jax.errors import UserError


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """As `Dataset.save_to_disk` writes it."""
    table = pa.table({"text": ["It rained.", "The river rose."]})
    path = str(tmp_path / "data-00000-of-00001.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "dataset_info.json").write_text("{}")
    write_state(tmp_path)
    return tmp_path


def write_state(folder: Path, **more: object) -> None:
    usual = {
        "_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "0a",
        "_format_columns": None, "_format_kwargs": {}, "_format_type": None,
        "_output_all_columns": False, "_split": None,
    }  # fmt: skip
    (folder / "state.json").write_text(json.dumps(usual | more))


def test_its_files_are_found(saved):
    write_state(saved, _indices_data_files=None)
    assert [path.name for path in arrow.find(SourceSpec("arrow", saved, "saved")).files] == [
        "data-00000-of-00001.arrow"
    ]


def test_rows_in_another_order_than_in_the_files_are_one_line(saved):
    """As releases before 2 save a shuffled dataset, or a part of one."""
    write_state(saved, _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(UserError, match=r"_indices_data_files=.* is not supported: rows"):
        arrow.find(SourceSpec("arrow", saved, "saved"))


def test_a_file_that_is_in_no_table_is_one_line(saved):
    (saved / "filter.json").write_text("{}")
    with pytest.raises(UserError, match=r"filter\.json: not a file that bert-jax knows"):
        arrow.find(SourceSpec("arrow", saved, "saved"))
