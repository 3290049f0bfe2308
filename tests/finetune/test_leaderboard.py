"""Predictions in the form of GLUE's leaderboard."""

import pytest

from bert_jax.data_pipeline.errors import UserError
from bert_jax.finetune.leaderboard import table, table_of


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
    with pytest.raises(UserError, match="task 'sst-2' is not of GLUE; did you mean sst2"):
        table("sst-2", ["0"], [0])
