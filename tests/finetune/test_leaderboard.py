"""Predictions in the form of GLUE's leaderboard."""

import zipfile
from pathlib import Path

import pytest

from bert_jax.data_pipeline.errors import UserError
from bert_jax.finetune.glue import TASKS
from bert_jax.finetune.leaderboard import FILES, table, write_zip


@pytest.mark.parametrize(
    ("task", "predictions", "expected"),
    [
        ("cola", [1, 0], ["1", "0"]),
        ("mrpc", [1, 0], ["1", "0"]),
        ("wnli", [1, 0], ["1", "0"]),
        ("rte", [1, 0], ["not_entailment", "entailment"]),
        ("mnli", [2, 1], ["contradiction", "neutral"]),
        ("stsb", [5.25, 3.14159], ["5.000", "3.142"]),
    ],
)
def test_a_table_has_words_where_the_task_has_words(
    task: str, predictions: list, expected: list[str]
) -> None:
    first, second = expected
    assert table(task, ["0", "7"], predictions) == f"index\tprediction\n0\t{first}\n7\t{second}\n"


def test_the_zip_has_the_names_of_glue_and_equal_bytes(tmp_path: Path) -> None:
    tables = {key: table(key[0], ["0"], [0]) for key in FILES}
    assert {task for task, _ in FILES} == set(TASKS)
    assert all(split in TASKS[task].files for task, split in FILES)
    assert write_zip(tmp_path / "a.zip", tables) == []
    assert write_zip(tmp_path / "b.zip", tables) == []
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert set(archive.namelist()) == {
            "CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv",
            "MNLI-mm.tsv", "QNLI.tsv", "RTE.tsv", "WNLI.tsv", "AX.tsv",
        }  # fmt: skip
        assert archive.read("AX.tsv") == b"index\tprediction\n0\tentailment\n"
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    del tables["rte", "test"]
    assert write_zip(tmp_path / "c.zip", tables) == ["RTE.tsv"]


def test_what_glue_does_not_have_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="GLUE's leaderboard has no mnli test; valid: test_matched"):
        write_zip(tmp_path / "a.zip", {("mnli", "test"): ""})
    with pytest.raises(UserError, match=r"id 'a\\tb' cannot be in a table"):
        table("rte", ["a\tb"], [0])
    with pytest.raises(UserError, match="task 'sst-2' is not of GLUE; did you mean sst2"):
        table("sst-2", ["0"], [0])
