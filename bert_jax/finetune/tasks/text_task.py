"""Classes or scores of texts and of pairs of texts: the tasks of GLUE, and tables.

A prediction is the id of a class with its probability, or a score.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from bert_jax.config.task_settings import TaskConfig, check_unused
from bert_jax.errors import UserError
from bert_jax.finetune.tasks import glue, leaderboard, table
from bert_jax.finetune.tasks.baselines import bag_of_words, majority
from bert_jax.finetune.tasks.encoding import Targets, encode
from bert_jax.finetune.tasks.kind import (
    Arrays,
    Logits,
    Prepared,
    TaskContext,
    TaskKind,
)
from bert_jax.finetune.tasks.labeled_examples import Example, Examples
from bert_jax.finetune.tasks.splits import divided, same_text
from bert_jax.objectives.sequence_classification import MULTI_LABEL, SINGLE_LABEL
from bert_jax.objectives.sequence_classification import REGRESSION as REGRESSION_OBJECTIVE
from bert_jax.storage.remote import open_path


@dataclass(frozen=True, kw_only=True)
class TextTask(TaskKind):
    """Texts with a class, or with a score.

    Attributes:
        of_tables: metrics where the task is none of GLUE, F1 only of two classes.
    """

    name: str
    objectives: tuple[str, ...]
    problem_type: str
    of_tables: tuple[str, ...]
    per_token: bool = False
    settings: tuple[str, ...] = ("text", "pair")

    @property
    def _is_score(self) -> bool:
        return self.name == "regression"

    def read(self, task: TaskConfig) -> tuple[Examples, Examples]:
        if task.name in glue.TASKS:
            why = f"for {task.name}, whose files and columns GLUE defines; leave it out"
            check_unused(task, ("held_out", "text", "pair", "label"), why)
            train = glue.read_split(task.name, task.data, "train")
            held_out = glue.read_dev(task.name, task.data)
        else:
            train = self._table(task, task.data)
            if not self._is_score and len(train.labels) == 1:
                raise UserError(
                    f"{train.path}: all rows have the label {train.labels[0]!r}; give rows with "
                    "others, too, or name another column by config.task.label"
                )
            if task.held_out:
                held_out = self._table(task, task.held_out, labels=train.labels)
            else:
                train, held_out = divided(train, [self.group(one) for one in _of(train)])
        for split in (train, held_out):
            _check_labels(split)
        return train, held_out

    def read_new(self, task: TaskConfig, source: str, split: str) -> Examples:
        if task.name in glue.TASKS and open_path(source).is_dir():
            return replace(glue.read_split(task.name, source, split), is_of_leaderboard=True)
        return self._table(task, source, labelled=False)

    def with_settings(self, task: TaskConfig, given: Mapping[str, Any]) -> TaskConfig:
        if task.name in glue.TASKS:  # its columns, in a file of another name
            text, pair = (*glue.TASKS[task.name].texts, "")[:2]
            task = replace(task, text=text, pair=pair)
        return super().with_settings(task, given)

    def _table(
        self,
        task: TaskConfig,
        path: str,
        labels: tuple[str, ...] | None = None,
        *,
        labelled: bool = True,
    ) -> Examples:
        """Reads a file with the task's columns; labelled: whether that of the label, too."""
        label = task.label if labelled else None
        if open_path(path).is_dir():
            raise UserError(f"{path}: a folder; give a .tsv, .csv, .jsonl or .parquet file")
        columns = table.Columns(
            task.text,
            task.pair or None,
            label=None if self._is_score else label,
            score=label if self._is_score else None,
        )
        return table.read_table(path, columns, labels=None if self._is_score else labels)

    def group(self, example: Example) -> tuple[str, ...]:
        return same_text(*example.texts)

    def labels(self, examples: Examples) -> list[int | float]:
        return [example.label for example in _of(examples) if example.label is not None]

    def content(self, examples: Examples) -> list[Any]:
        return [_texts(examples), self.labels(examples)]

    def prepare(self, context: TaskContext, examples: Examples) -> Prepared:
        encoded = encode(context.tokenizer, context.model, _texts(examples), context.limit)
        labels = np.array(self.labels(examples), np.float32 if self._is_score else np.int32)
        weights = np.ones(len(labels), np.float32)
        arrays = {"labels": labels[:, None] if self._is_score else labels, "label_weights": weights}
        notes = (f"{encoded.cut:,} cut to the limit",) if encoded.cut else ()
        return Prepared(encoded, Targets(of_examples=arrays), notes=notes)

    def metrics(self, task: TaskConfig, labels: Sequence[str]) -> tuple[str, ...]:
        if task.name in glue.TASKS:
            names = glue.TASKS[task.name].metrics
            return tuple(f"{name}{end}" for end in glue.dev_ends(task.name) for name in names)
        return tuple(name for name in self.of_tables if name != "f1" or len(labels) == 2)

    def predictions(
        self, task: TaskConfig, examples: Examples, prepared: Prepared, logits: Logits
    ) -> list[Any]:
        if self._is_score:
            return [float(score) for (score,) in logits]
        return [PredictedClass.of(values) for values in logits]

    def teacher_outputs(self, prepared: Prepared, logits: Logits) -> Arrays:
        """Returns "logits", float32 [E, C]."""
        return {"logits": np.stack(logits)}

    def baselines(
        self, task: TaskConfig, train: Examples, held_out: Examples
    ) -> Mapping[str, Sequence[Any]]:
        known, new, labels = _texts(train), _texts(held_out), self.labels(train)
        constant = majority(labels, len(new), regression=self._is_score)
        words = bag_of_words(known, labels, new, regression=self._is_score)
        name = "mean score" if self._is_score else "majority"
        return {name: constant.tolist(), "bag of words": words.tolist()}

    def files(
        self, task: TaskConfig, examples: Examples, predictions: Sequence[Any]
    ) -> Mapping[str, str]:
        """The form of GLUE's leaderboard for a split of its tasks; else with the names of the
        labels, and their probabilities."""
        ids = [example.id for example in _of(examples)]
        if examples.is_of_leaderboard:
            return {"out": leaderboard.table(task.name, ids, predictions)}
        if self._is_score:
            return {"out": leaderboard.table_of(ids, [f"{score:.4f}" for score in predictions])}
        names = [examples.labels[one] for one in predictions]
        shares = [one.probability for one in predictions]
        return {"out": leaderboard.table_of(ids, names, shares)}


class PredictedClass(int):
    """The id of the most probable class, and its probability."""

    probability: float

    @classmethod
    def of(cls, logits: np.ndarray) -> "PredictedClass":
        """logits: of the classes of a text, [C]."""
        found, powers = cls(logits.argmax()), np.exp(logits - logits.max())
        found.probability = float(powers[found] / powers.sum())
        return found


def _of(examples: Examples) -> tuple[Example, ...]:
    return examples.examples


def _texts(examples: Examples) -> list[tuple[str, ...]]:
    return [example.texts for example in _of(examples)]


def _check_labels(examples: Examples) -> None:
    if not examples.examples:
        raise UserError(f"{examples.path}: no examples")
    missing = next((e for e in _of(examples) if e.label is None), None)
    if missing:
        raise UserError(f"{examples.path}: row {missing.row:,} has no label; give a labelled file")


CLASSIFICATION: Final = TextTask(
    name="classification",
    objectives=(SINGLE_LABEL.name, MULTI_LABEL.name),
    problem_type="single_label_classification",
    of_tables=("accuracy", "f1"),
)
REGRESSION: Final = TextTask(
    name="regression",
    objectives=(REGRESSION_OBJECTIVE.name,),
    problem_type="regression",
    of_tables=("pearson", "spearman"),
)
