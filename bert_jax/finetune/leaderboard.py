"""Predictions in the form of GLUE's leaderboard: a zip of tables, each `index<TAB>prediction`.

A task's table has the words of its files where they have words, such as `not_entailment`, else the
ids; scores have three decimals and stay within 0 to 5.
"""

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bert_jax.data_pipeline.errors import UserError
from bert_jax.finetune.glue import Task, task_of

# (task, split) -> file in the zip; the site refuses one that lacks any.
FILES: Final[Mapping[tuple[str, str], str]] = {
    ("cola", "test"): "CoLA.tsv",
    ("sst2", "test"): "SST-2.tsv",
    ("mrpc", "test"): "MRPC.tsv",
    ("stsb", "test"): "STS-B.tsv",
    ("qqp", "test"): "QQP.tsv",
    ("mnli", "test_matched"): "MNLI-m.tsv",
    ("mnli", "test_mismatched"): "MNLI-mm.tsv",
    ("qnli", "test"): "QNLI.tsv",
    ("rte", "test"): "RTE.tsv",
    ("wnli", "test"): "WNLI.tsv",
    ("mnli", "diagnostic"): "AX.tsv",
}
_HEADER: Final = "index\tprediction\n"
_DATE: Final = (1980, 1, 1, 0, 0, 0)  # of files in the zip: the same predictions give equal bytes


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


def table_of(ids: Sequence[str], words: Iterable[str]) -> str:
    """Returns a table of words; UserError if an id has a tab or line end."""
    rows = []
    for key, word in zip(ids, words, strict=True):
        if len(key.splitlines()) > 1 or "\t" in key:
            raise UserError(f"id {key[:60]!r} cannot be in a table: it has a tab or a line end")
        rows.append(f"{key}\t{word}\n")
    return _HEADER + "".join(rows)


def _word(task: Task, prediction: float) -> str:
    if task.kind == "regression":
        return f"{min(max(prediction, 0.0), 5.0):.3f}"
    return (task.values or task.labels)[int(prediction)]


def write_zip(path: Path, tables: Mapping[tuple[str, str], str]) -> list[str]:
    """Writes the tables of (task, split); returns the names of files that are missing.

    Raises:
        UserError: GLUE has no such task or split.
    """
    for task, split in tables:
        if (task, split) not in FILES:
            valid = [split for name, split in FILES if name == task]
            raise UserError(f"GLUE's leaderboard has no {task} {split}; valid: {', '.join(valid)}")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, name in FILES.items():
            if key in tables:
                archive.writestr(zipfile.ZipInfo(name, _DATE), tables[key])
    return [name for key, name in FILES.items() if key not in tables]
