"""Predictions in the form of GLUE's leaderboard: a table of `index<TAB>prediction` for each task.

A task's table has the words of its files where they have words, such as `not_entailment`, else the
ids; scores have three decimals and stay within 0 to 5. Other tables have the names of labels and a
column more, `probability`.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from bert_jax.data_pipeline.sources.tab_rows import fits_tab_row
from bert_jax.errors import UserError
from bert_jax.finetune.tasks.glue import Task, task_of

_HEADER: Final = "index\tprediction\n"
_WITH_PROBABILITY: Final = "index\tprediction\tprobability\n"


def table(name: str, ids: Sequence[str], predictions: Sequence[int] | Sequence[float]) -> str:
    """Returns the table of a task.

    Args:
        ids: `Example.id` of each example.
        predictions: ids of classes, or scores.

    Raises:
        UserError: no such task, or an id has a tab or line end.
    """
    task = task_of(name)
    return table_of(ids, (_word(task, prediction) for prediction in predictions))


def table_of(
    ids: Sequence[str], words: Iterable[str], probabilities: Sequence[float] | None = None
) -> str:
    """Returns a table of words; UserError if an id or a word has a tab or line end.

    probabilities: of the words, a third column, which no table of the leaderboard has.
    """
    rows, shares = [], probabilities if probabilities is not None else [None] * len(ids)
    for key, word, share in zip(ids, words, shares, strict=True):
        for what, text in (("id", key), ("label", word)):
            if not fits_tab_row(text):
                problem = "cannot be in a table: it has a tab or a line end"
                raise UserError(f"{what} {text[:60]!r} {problem}")
        rows.append(f"{key}\t{word}\n" if share is None else f"{key}\t{word}\t{share:.4f}\n")
    return (_HEADER if probabilities is None else _WITH_PROBABILITY) + "".join(rows)


def _word(task: Task, prediction: float) -> str:
    if task.kind == "regression":
        return f"{min(max(prediction, 0.0), 5.0):.3f}"
    return (task.values or task.labels)[int(prediction)]
