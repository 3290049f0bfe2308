"""Reads the examples that `config.task` names."""

import dataclasses

import numpy as np

from bert_jax.config.task_settings import TaskConfig
from bert_jax.data_pipeline.random.counter_rng import MIXING, permute, stream_key
from bert_jax.errors import UserError, nearest
from bert_jax.finetune import glue, table
from bert_jax.finetune.examples import Example, Examples

TABLES = ("classification", "regression")
_METRICS = {"classification": ("accuracy", "f1"), "regression": ("pearson", "spearman")}
_HELD_OUT = 10  # one row of ten, where no file of held-out rows is given


def read_splits(task: TaskConfig) -> tuple[Examples, Examples]:
    """Returns the training and the held-out examples of a task.

    Raises:
        UserError: no such task or file, a row that cannot be read, or one without a label.
    """
    if not task.data:
        raise UserError("config.task.data is empty; give the folder or the file of the task")
    if task.name in glue.TASKS:
        train = glue.read(task.name, task.data, "train")
        held_out = glue.read(task.name, task.data, dev_split(task.name))
    elif task.name in TABLES:
        train = read_table(task, task.data)
        if task.held_out:
            held_out = read_table(task, task.held_out, labels=train.labels)
        else:
            train, held_out = _divided(train)
    else:
        raise UserError(
            f"config.task.name={task.name!r}{nearest(task.name, [*glue.TASKS, *TABLES])}"
        )
    for split in (train, held_out):
        _check_labels(split)
    return train, held_out


def dev_split(name: str) -> str:
    """Returns the split of a GLUE task that a run evaluates."""
    return next(split for split in glue.TASKS[name].files if split.startswith("dev"))


def read_table(
    task: TaskConfig, path: str, labels: tuple[str, ...] | None = None, *, labelled: bool = True
) -> Examples:
    """Reads a file with the task's columns; labelled: whether that of the label is read, too."""
    label = task.label if labelled else None
    is_score = task.name == "regression"
    columns = table.Columns(
        task.text,
        task.pair or None,
        label=None if is_score else label,
        score=label if is_score else None,
    )
    return table.read(path, columns, labels=None if is_score else labels)


def metric_names(task: TaskConfig, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names of a task's metrics, the most important first; F1 only of two classes."""
    if task.name in glue.TASKS:
        return glue.TASKS[task.name].metrics
    names = _METRICS[task.name]
    return names if task.name == "regression" or len(labels) == 2 else names[:1]


def _divided(examples: Examples) -> tuple[Examples, Examples]:
    """Splits the rows of a file: a tenth, drawn at random but always the same, is held out."""
    count = len(examples.examples)
    if count < 2:
        raise UserError(f"{examples.path}: {count} rows; a task needs at least 2")
    order = permute(stream_key(0, 0, 0, MIXING), np.arange(count), count)
    is_held_out = np.zeros(count, bool)
    is_held_out[order[: max(1, count // _HELD_OUT)]] = True
    listed = _single(examples)
    train, held_out = (
        dataclasses.replace(examples, examples=tuple(listed[i] for i in np.flatnonzero(chosen)))
        for chosen in (~is_held_out, is_held_out)
    )
    return train, held_out


def texts_of(examples: Examples) -> list[tuple[str, ...]]:
    """Returns the texts of examples that have one label each."""
    return [example.texts for example in _single(examples)]


def labels_of(examples: Examples) -> list[int] | list[float]:
    """Returns the labels of examples that have one each."""
    return [example.label for example in _single(examples) if example.label is not None]


def _single(examples: Examples) -> tuple[Example, ...]:
    assert examples.kind in TABLES, examples.kind
    return examples.examples  # type: ignore[return-value]


def _check_labels(examples: Examples) -> None:
    if not examples.examples:
        raise UserError(f"{examples.path}: no examples")
    missing = next((e for e in _single(examples) if e.label is None), None)
    if missing:
        raise UserError(f"{examples.path}: row {missing.row:,} has no label; give a labelled file")
