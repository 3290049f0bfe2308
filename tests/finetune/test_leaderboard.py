"""Predictions in the form of GLUE's leaderboard."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bert_jax.config.task_settings import TaskConfig
from bert_jax.errors import UserError
from bert_jax.finetune.tasks.encoding import joined
from bert_jax.finetune.tasks.kind import Prepared
from bert_jax.finetune.tasks.leaderboard import table, table_of
from bert_jax.finetune.tasks.text_task import CLASSIFICATION


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


def test_what_glue_does_not_have_is_one_line() -> None:
    with pytest.raises(UserError, match=r"id 'a\\tb' cannot be in a table"):
        table("rte", ["a\tb"], [0])
    with pytest.raises(UserError, match=r"label 'a\\nb' cannot be in a table"):
        table_of(["0"], ["a\nb"])
    with pytest.raises(UserError, match="'sst-2' is not a task of GLUE; did you mean sst2"):
        table("sst-2", ["0"], [0])


def test_only_a_file_of_ones_own_has_names_and_probabilities(tmp_path: Path) -> None:
    """The leaderboard takes its own form alone."""
    task = TaskConfig(name="sst2", data="SST-2", text="sentence")
    (tmp_path / "test.tsv").write_text("index\tsentence\n3\tGood.\n4\tBad.\n")
    logits = [np.array([0.0, np.log(3)], np.float32), np.array([0.0, -40], np.float32)]

    def written(source: Path) -> str:
        examples = CLASSIFICATION.read_new(task, str(source), "test")
        examples = dataclasses.replace(examples, labels=("negative", "positive"))
        prepared = Prepared(joined([]))
        found = CLASSIFICATION.predictions(task, examples, prepared, logits)
        return CLASSIFICATION.files(task, examples, found)["out"]

    assert written(tmp_path) == "index\tprediction\n3\t1\n4\t0\n"
    assert written(tmp_path / "test.tsv") == (
        "index\tprediction\tprobability\n0\tpositive\t0.7500\n1\tnegative\t1.0000\n"
    )
