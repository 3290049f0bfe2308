"""The interface of a kind of task: files, what a model learns, predictions, metrics, baselines."""

import abc
import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.config.schema import Config, ModelConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.config.task_settings import TaskConfig
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune.tasks import metrics
from bert_jax.finetune.tasks.encoding import Encoded, Targets
from bert_jax.finetune.tasks.labeled_examples import Examples
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.known_objectives import OBJECTIVES
from bert_jax.objectives.soft_labels import TEACHER

Arrays = Mapping[str, np.ndarray]
Measured = Mapping[str, float | None]  # metric -> value, None if it is undefined
# Of each example or window of `Prepared`: [C]; where they are `per_token`, [n, C]; of an example of
# several sequences, those of each.
Logits = Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True)
class TaskContext:
    """The context in which examples are prepared.

    Attributes:
        limit: maximum tokens of a sequence.
    """

    task: TaskConfig
    tokenizer: Tokenizer
    model: ModelConfig
    limit: int


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Examples as the model's input.

    Attributes:
        encoded: the tokens of the examples, or of their windows: what a batch counts.
        targets: their labels; empty for unlabelled examples.
        windows: parts of the examples, where a long one is read in several.
        notes: counts for the log: "3 cut to the limit".
    """

    encoded: Encoded
    targets: Targets = dataclasses.field(default_factory=Targets)
    windows: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()


class TaskKind(abc.ABC):
    """A kind of task, a row of `task_kinds.KINDS`; each has its own file in this folder.

    A kind chooses the form of its predictions, one for each example.

    Attributes:
        name: in `config.task.name`, and of the `Examples` that it reads.
        objectives: those whose models make its predictions; the first one trains.
        problem_type: of a classifier, see `HeadConfig`.
        per_token: whether the model has logits for each token, or else for each sequence.
        per_example: whether it has logits for each example of several sequences.
        pools: whether `config.task.pooling` has an effect without `config.task.layers`, and these
            have none.
        in_words: whether the texts are given in words, see `Tokenizer.for_task`.
        own_settings: keys of `config.task` that are refused for all other kinds.
        settings: the keys of `config.task` that `bert-jax predict` may set.
        extra_outputs: the flags of files of predictions beside that of `out`.
    """

    name: str
    objectives: tuple[str, ...]
    problem_type: str | None = None
    per_token: bool = True
    per_example: bool = False
    pools: bool = False
    in_words: bool = False
    own_settings: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    extra_outputs: tuple[str, ...] = ()

    @abc.abstractmethod
    def read(self, task: TaskConfig) -> tuple[Examples, Examples]:
        """Returns the training and the held-out examples; UserError for a file or a row that cannot
        be read, or that has no label."""

    @abc.abstractmethod
    def read_new(self, task: TaskConfig, source: str, split: str) -> Examples:
        """Returns the examples of a file, or of a split in a folder, which need no labels."""

    def group(self, example: Any) -> Hashable:
        """Returns the texts whose examples are held out together; None if any can be apart."""
        return None

    @abc.abstractmethod
    def labels(self, examples: Examples) -> Sequence[Any]:
        """Returns all labels; if they are all the same, no metric means anything."""

    def useless(self, examples: Examples) -> str:
        """Returns why no metric of held-out examples means anything, in words; "" if it does."""
        same = len(set(self.labels(examples))) == 1
        return "all held-out labels are the same" if same else ""

    @abc.abstractmethod
    def content(self, examples: Examples) -> list[Any]:
        """Returns the texts and labels that a model learns from, as JSON values."""

    @abc.abstractmethod
    def prepare(self, context: TaskContext, examples: Examples) -> Prepared:
        """Tokenizes examples; UserError if the limit of tokens is too short."""

    @abc.abstractmethod
    def metrics(self, task: TaskConfig, labels: Sequence[str]) -> tuple[str, ...]:
        """Returns the names of the metrics; the first is the task's main one: higher is better."""

    @abc.abstractmethod
    def predictions(
        self, task: TaskConfig, examples: Examples, prepared: Prepared, logits: Logits
    ) -> Sequence[Any]:
        """Returns the prediction for each example, from the logits of all that was prepared: of
        each example or window, or of each of its tokens or sequences."""

    def compute_metrics(
        self, task: TaskConfig, examples: Examples, predictions: Sequence[Any]
    ) -> Measured:
        """Returns the metrics of predictions for labelled examples; here `metrics.measure` of the
        names that `metrics` returns."""
        names = self.metrics(task, examples.labels)
        return metrics.measure(names, self.labels(examples), predictions, examples.parts)

    @abc.abstractmethod
    def baselines(
        self, task: TaskConfig, train: Examples, held_out: Examples
    ) -> Mapping[str, Sequence[Any]]:
        """Returns predictions for the held-out examples without a pretrained model, by the name of
        the baseline."""

    @abc.abstractmethod
    def files(
        self, task: TaskConfig, examples: Examples, predictions: Sequence[Any]
    ) -> Mapping[str, str]:
        """Returns the text of the files of predictions by the flag that names each; the main one is
        that of `out`."""

    def corpus(self, train: Prepared, vocabulary: int) -> Corpus:
        """Returns the frequencies of the tokens that are predicted, for the baseline of a kind that
        predicts tokens; vocabulary: its size."""
        return Corpus((), np.zeros(vocabulary, np.float32))

    def with_head_settings(self, task: TaskConfig, model: TaskModelConfig) -> TaskModelConfig:
        """Returns the model with what a task sets in its head; UserError for what does not fit."""
        return model

    def check_batches(
        self, examples: Examples, prepared: Prepared, batches: Iterable[np.ndarray]
    ) -> None:
        """Raises UserError for a training batch of which nothing can be learned.

        batches: the indices of the examples of each, of an epoch.
        """
        return  # from any example, by default

    def teacher_outputs(self, prepared: Prepared, logits: Logits) -> Arrays:
        """Returns what a teacher says of each example, whatever its tokenizer and its windows.

        Args:
            prepared: the examples as the teacher reads them.
            logits: of all that was prepared.
        """
        raise NotImplementedError  # a kind whose objective has no soft loss is refused before

    def soft_targets(self, outputs: Arrays, prepared: Prepared, temperature: float) -> Targets:
        """Returns the array `TEACHER` of the examples as the student reads them; here from the
        "logits" of each example, [E, C].

        outputs: of `teacher_outputs`, of the same examples in the same order.
        """
        return Targets(of_examples={TEACHER: self.softened(outputs["logits"], temperature)})

    def softened(self, logits: np.ndarray, temperature: float) -> np.ndarray:
        """Returns what the objective learns of the logits of a teacher, [..., C]."""
        soft = OBJECTIVES[self.objectives[0]].soft
        assert soft is not None
        return soft.targets(logits, temperature)

    def check(self, config: Config) -> None:
        """Raises UserError for a configuration that the kind cannot use; most can use any."""
        return

    def check_flags(self, names: Iterable[str]) -> None:
        """Raises UserError for a flag of `bert-jax predict` that is for other kinds."""
        known = {*self.settings, *self.extra_outputs}
        if wrong := next((name for name in names if name not in known), None):
            raise UserError(f"--{wrong} has no effect for a {self.name} model; leave it out")

    def with_settings(self, task: TaskConfig, given: Mapping[str, Any]) -> TaskConfig:
        """Returns a task with the values that `bert-jax predict` sets."""
        return dataclasses.replace(task, **given)
