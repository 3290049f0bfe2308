"""The interface of a kind of task: its files, what a model learns, metrics and predictions."""

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.config.schema import ModelConfig
from bert_jax.config.task_model import ProblemType
from bert_jax.config.task_settings import TaskConfig
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune.tasks.encoding import Encoded, Targets
from bert_jax.finetune.tasks.examples import Examples, Kind

Measured = Mapping[str, float | None]  # metric -> value, None if it is not defined


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Examples as a model reads them.

    Attributes:
        encoded: the tokens of the examples, or of their windows: what a batch counts.
        targets: of these; empty without labels.
        windows: parts of the examples, where a long one is read in several.
        notes: what was counted, for the log: "3 cut to the limit".
    """

    encoded: Encoded
    targets: Targets = dataclasses.field(default_factory=Targets)
    windows: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()


class TaskKind(abc.ABC):
    """A kind of task, an entry of `registry.KINDS`; each has its own file in this folder.

    A guess is what is predicted for an example, in the form that the kind chooses.

    Attributes:
        name: in `config.task.name`, and of the `Examples` that it reads.
        objectives: whose models predict its tasks; the first one trains.
        problem_type: of a classifier, see `HeadConfig`.
        per_token: whether a model has an output for each token, or else for each example.
        in_words: whether the texts are given in words, see `Tokenizer.for_task`.
        settings: the keys of `config.task` that `bert-jax predict` may set.
        further: the flags of files of predictions beside that of `out`.
    """

    name: Kind
    objectives: tuple[str, ...]
    problem_type: ProblemType | None = None
    per_token: bool = True
    in_words: bool = False
    settings: tuple[str, ...] = ()
    further: tuple[str, ...] = ()

    @abc.abstractmethod
    def read(self, task: TaskConfig) -> tuple[Examples, Examples]:
        """Returns the training and the held-out examples; UserError for a file or a row that cannot
        be read, or that has no label."""

    @abc.abstractmethod
    def read_new(self, task: TaskConfig, source: str, split: str) -> Examples:
        """Returns the examples of a file, or of a split in a folder, which need no labels."""

    @abc.abstractmethod
    def labels(self, examples: Examples) -> Sequence[Any]:
        """Returns all labels; with only one of them, no metric means anything."""

    @abc.abstractmethod
    def content(self, examples: Examples) -> list[Any]:
        """Returns what a model learns from, in a form that JSON has."""

    @abc.abstractmethod
    def prepare(
        self,
        tokenizer: Tokenizer,
        model: ModelConfig,
        task: TaskConfig,
        examples: Examples,
        limit: int,
    ) -> Prepared:
        """Returns examples as rows of at most `limit` tokens; UserError if that is too short."""

    @abc.abstractmethod
    def metrics(self, task: TaskConfig, labels: Sequence[str]) -> tuple[str, ...]:
        """Returns the names of the metrics; the first is the task's: the higher, the better."""

    @abc.abstractmethod
    def guesses(
        self,
        task: TaskConfig,
        examples: Examples,
        prepared: Prepared,
        logits: Sequence[np.ndarray],
    ) -> Sequence[Any]:
        """Returns a guess for each example.

        logits: of each row of `prepared`: [C], or where they are `per_token` [n, C].
        """

    @abc.abstractmethod
    def measure(self, task: TaskConfig, examples: Examples, guesses: Sequence[Any]) -> Measured:
        """Returns the metrics of guesses for examples with labels."""

    @abc.abstractmethod
    def baselines(
        self, task: TaskConfig, train: Examples, held_out: Examples
    ) -> Mapping[str, Sequence[Any]]:
        """Returns guesses for the held-out examples that need no pretrained model, by name."""

    @abc.abstractmethod
    def files(
        self, task: TaskConfig, examples: Examples, guesses: Sequence[Any]
    ) -> Mapping[str, str]:
        """Returns the text of the files of predictions by the flag that names each; the main one is
        that of `out`."""

    def check_flags(self, names: Iterable[str]) -> None:
        """Raises UserError for a flag of `bert-jax predict` that is for other kinds."""
        known = {*self.settings, *self.further}
        if wrong := next((name for name in names if name not in known), None):
            raise UserError(f"--{wrong}: not for a model of {self.name}; leave it out")

    def with_settings(self, task: TaskConfig, given: Mapping[str, Any]) -> TaskConfig:
        """Returns a task with the values that `bert-jax predict` sets."""
        return dataclasses.replace(task, **given)
