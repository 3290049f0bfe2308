"""Multiple choice, such as which of four endings a story has: SWAG's files, and tables.

Each choice is a sequence of its own, the context with the choice as its second text. A prediction
is the number of a choice, from 0, with its probability.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bert_jax.config.task_settings import TaskConfig, check_unused
from bert_jax.errors import UserError, count
from bert_jax.finetune.tasks import leaderboard, table
from bert_jax.finetune.tasks.baselines import choice_by_words, majority, most_shared_words
from bert_jax.finetune.tasks.class_names import cleaned
from bert_jax.finetune.tasks.encoding import Targets, encode
from bert_jax.finetune.tasks.kind import (
    Arrays,
    Logits,
    Prepared,
    TaskContext,
    TaskKind,
)
from bert_jax.finetune.tasks.labeled_examples import Examples
from bert_jax.finetune.tasks.rows import wrong_row
from bert_jax.finetune.tasks.splits import Files, divided, find_file, find_files, same_text
from bert_jax.finetune.tasks.text_task import PredictedClass
from bert_jax.objectives.multiple_choice import MULTIPLE_CHOICE as OBJECTIVE

_NAMES: Final = {"train": ("train",), "dev": ("val", "dev"), "test": ("test",)}
_FILES: Final[Files] = {
    split: tuple((f"{name}{end}",) for end in (".csv", ".tsv", ".jsonl") for name in names)
    for split, names in _NAMES.items()
}


@dataclass(frozen=True)
class Choices:
    """A text with several that may follow it.

    Attributes:
        context: the first text of each choice.
        stem: how each of them begins; may be empty.
        label: the number of the right one, from 0; None in a file without labels.
        row: of the file, from 1.
    """

    id: str
    context: str
    stem: str
    choices: tuple[str, ...]
    label: int | None
    row: int

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The texts of each choice."""
        return [(self.context, f"{self.stem} {one}" if self.stem else one) for one in self.choices]


@dataclass(frozen=True)
class _Columns:
    """Names of columns; `stem` may be empty."""

    context: str
    stem: str
    choices: tuple[str, ...]
    label: str

    @classmethod
    def of(cls, task: TaskConfig) -> "_Columns":
        """Returns those that a task names, or else SWAG's; UserError for a part of them."""
        if task.choices:
            names = tuple(name.strip() for name in task.choices.split(","))
            if len(set(names)) != len(names) or len(names) < 2:
                raise UserError(
                    f"config.task.choices={task.choices}; give two or more columns, such as a,b,c"
                )
            return cls(task.text, task.pair, names, task.label)
        why = (
            "without config.task.choices, the columns of the choices; set it, or leave both out "
            "for SWAG's"
        )
        check_unused(task, ("text", "pair", "label"), why)
        return cls("sent1", "sent2", tuple(f"ending{i}" for i in range(4)), "label")


class MultipleChoiceTask(TaskKind):
    """Texts, each with several of which one follows it."""

    name = "multiple_choice"
    objectives = (OBJECTIVE.name,)
    per_token = False
    own_settings = ("choices",)
    settings = ("text", "pair", "choices")

    def read(self, task: TaskConfig) -> tuple[Examples, Examples]:
        path, other = find_files(task, _FILES)
        train = _read(path, _Columns.of(task), labelled=True)
        if other:
            return train, _read(other, _Columns.of(task), labelled=True)
        return divided(train, [self.group(one) for one in _of(train)])

    def read_new(self, task: TaskConfig, source: str, split: str) -> Examples:
        path = find_file(self.name, source, _FILES, split)
        return _read(path, _Columns.of(task), labelled=False)

    def group(self, example: Choices) -> tuple[str, ...]:
        return same_text(example.context)

    def labels(self, examples: Examples) -> list[int]:
        return [one.label for one in _of(examples) if one.label is not None]

    def content(self, examples: Examples) -> list[Any]:
        return [[one.pairs, one.label] for one in _of(examples)]

    def prepare(self, context: TaskContext, examples: Examples) -> Prepared:
        pairs = [pair for one in _of(examples) for pair in one.pairs]
        encoded = encode(context.tokenizer, context.model, pairs, context.limit)
        sequences = len(pairs) // max(1, len(examples.examples)) or 1
        labels = np.array(self.labels(examples), np.int32)
        arrays = {"choices": labels, "choice_weights": np.ones(len(labels), np.float32)}
        notes = (f"{count(encoded.cut, 'choice')} cut to the limit",) if encoded.cut else ()
        return Prepared(
            dataclasses.replace(encoded, sequences=sequences),
            Targets(of_examples=arrays),
            notes=notes,
        )

    def metrics(self, task: TaskConfig, labels: Sequence[str]) -> tuple[str, ...]:
        return ("accuracy",)

    def predictions(
        self, task: TaskConfig, examples: Examples, prepared: Prepared, logits: Logits
    ) -> list[PredictedClass]:
        return [PredictedClass.of(scores[:, 0]) for scores in logits]

    def teacher_outputs(self, prepared: Prepared, logits: Logits) -> Arrays:
        """Returns "logits", float32 [E, C], of the choices of each example."""
        return {"logits": np.stack([scores[:, 0] for scores in logits])}

    def baselines(
        self, task: TaskConfig, train: Examples, held_out: Examples
    ) -> Mapping[str, Sequence[int]]:
        """The most frequent number; the words of the right choices, whatever the context; and the
        choice with most words of its context and stem."""
        labels, new = self.labels(train), _of(held_out)
        known, others = ([one.choices for one in _of(some)] for some in (train, held_out))
        return {
            "majority": majority(labels, len(new), regression=False).tolist(),
            "bag of words": choice_by_words(known, labels, others).tolist(),
            "shared words": [
                most_shared_words(f"{one.context} {one.stem}", one.choices) for one in new
            ],
        }

    def files(
        self, task: TaskConfig, examples: Examples, predictions: Sequence[PredictedClass]
    ) -> Mapping[str, str]:
        ids, shares = [one.id for one in _of(examples)], [one.probability for one in predictions]
        return {"out": leaderboard.table_of(ids, [str(int(one)) for one in predictions], shares)}


def _read(path: Path, columns: _Columns, *, labelled: bool) -> Examples:
    """Reads the examples of a file; UserError as `table.read_rows`, or a label is no choice."""
    names = [columns.context, *([columns.stem] if columns.stem else []), *columns.choices]
    listed, dropped = table.read_rows(path, [*names, *([columns.label] if labelled else [])])
    if labelled and not listed:
        raise UserError(f"{path}: no examples")
    numbers = {str(i): i for i in range(len(columns.choices))}
    for i, name in enumerate(columns.choices):
        if numbers.setdefault(name, i) != i:
            raise UserError(
                f"{path}: label {name} is ambiguous: it may be the column {name} or the number of "
                "another column; rename the columns of config.task.choices"
            )
    examples = []
    for number, (row, values) in enumerate(listed):
        said = cleaned(values[columns.label]) if labelled else ""
        if labelled and said not in numbers:
            wrong_row(
                path, row, f"label {said[:60]!r} is neither a number from 0 to "
                f"{len(columns.choices) - 1} nor the name of a choice's column"
            )  # fmt: skip
        stem, choices = values.get(columns.stem, ""), (values[name] for name in columns.choices)
        context = values[columns.context]
        examples.append(Choices(str(number), context, stem, tuple(choices), numbers.get(said), row))
    return Examples(str(path), MULTIPLE_CHOICE.name, columns.choices, tuple(examples), dropped)


def _of(examples: Examples) -> tuple[Choices, ...]:
    return examples.examples


MULTIPLE_CHOICE: Final = MultipleChoiceTask()
