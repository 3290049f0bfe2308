"""The files of a task as the data of a run."""

# Over 300 lines: steps, batches and checks of a task follow from its files in one order.

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from typing import Any, Final

import jax
import numpy as np

from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.config.task_settings import TaskConfig
from bert_jax.convert.task_heads import with_head
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.distributed.job import Job
from bert_jax.errors import UserError, count
from bert_jax.finetune.batches import ExampleBatches
from bert_jax.finetune.check_task import check_task
from bert_jax.finetune.probe import with_probe
from bert_jax.finetune.search_measure import OpenSearch
from bert_jax.finetune.task_evaluation import HeldOutExamples
from bert_jax.finetune.task_tokenizer import find_tokenizer
from bert_jax.finetune.tasks.encoding import check_no_padding
from bert_jax.finetune.tasks.kind import Logits, Measured, Prepared, TaskContext, TaskKind
from bert_jax.finetune.tasks.labeled_examples import Examples
from bert_jax.finetune.tasks.retrieval_files import Retrieval
from bert_jax.finetune.tasks.task_kinds import kind_of
from bert_jax.finetune.teacher import Teacher
from bert_jax.metrics.retrieval import MEASURES
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.known_objectives import OBJECTIVES
from bert_jax.parallel.mesh import axis_size
from bert_jax.parallel.partition import AXES
from bert_jax.runtime.log import logger
from bert_jax.storage.digest import json_digest
from bert_jax.storage.hub import is_hub
from bert_jax.storage.remote import storage_errors
from bert_jax.training.run_data import PhaseData
from bert_jax.workdir.layout import Workdir

_SHOWN: Final = 10  # labels in the log
# Keys that follow from others of the task, as the steps do.
_DECIDED_BY: Final = {
    "optimizer.warmup_steps": "task.warmup_share",
    "evaluation.every_steps": "task.evaluations",
}


@dataclasses.dataclass(frozen=True)
class TaskSplit:
    """The training or the held-out examples.

    Attributes:
        labels: of all of them.
        digest: of what a model learns from.
    """

    examples: Examples
    prepared: Prepared
    labels: Sequence[Any]
    digest: str

    @property
    def rows(self) -> int:
        """The number of examples as batches count them: a long one may be several windows."""
        return self.prepared.encoded.examples

    @property
    def example_of(self) -> np.ndarray:
        """The index of the example of each row, int64."""
        windows = self.prepared.windows
        return np.array(
            [window.example for window in windows] if windows else range(self.rows), np.int64
        )

    def __str__(self) -> str:
        number = len(self.examples.examples)
        said = [count(number, "example")]
        if self.rows != number:
            said.append(count(self.rows, "window"))
        return ", ".join([*said, *self.examples.notes, *self.prepared.notes])


@dataclasses.dataclass(frozen=True)
class TaskData:
    """See `run_data.RunData`; created by `open_task`.

    Attributes:
        search: what is searched at evaluations, and what measures it.
    """

    path: str
    kind: TaskKind
    tokenizer: Tokenizer
    train: TaskSplit
    held_out: TaskSplit
    sources: tuple[str, ...] = ()
    teacher: Teacher | None = None
    search: tuple[Retrieval, OpenSearch] | None = None

    def __str__(self) -> str:
        shown = ", ".join(self.labels[:_SHOWN]) + (", …" if len(self.labels) > _SHOWN else "")
        labels = f"; {count(len(self.labels), 'label')}: {shown}" if self.labels else ""
        return f"{self.train} for training; {self.held_out} held out{labels}"

    @property
    def digests(self) -> dict[str, str]:
        teacher = {"teacher": self.teacher.digest} if self.teacher else {}
        return teacher | ({"retrieval": self.search[0].digest} if self.search else {})

    @property
    def files(self) -> dict[str, Any]:
        return {
            name: {
                "files": [
                    file if is_hub(file) else PurePath(file).name
                    for file in split.examples.path.split(" + ")
                ],
                "examples": len(split.examples.examples),
                "dropped": dict(split.examples.dropped),
            }
            for name, split in (("train", self.train), ("held_out", self.held_out))
        }

    @property
    def tokenizer_digest(self) -> str:
        return self.tokenizer.digest

    @property
    def labels(self) -> tuple[str, ...]:
        return self.train.examples.labels

    def configured(self, config: Config) -> Config:
        """Returns the configuration with the head of the task, and what its epochs decide."""
        config = self._planned(config)
        return config.with_model(_with_head(self.kind, config, self.labels))

    def phase(self, config: Config, phase: PhaseConfig, mesh: jax.sharding.Mesh) -> PhaseData:
        """Returns the data of a phase; both splits have enough rows for every device."""
        parts = axis_size(mesh, AXES["batch"]) * phase.micro_batches
        own = self.train.examples, self.train.prepared
        check = functools.partial(self.kind.check_batches, *own)
        train = self._batches(self.train, config, phase, config.seed, phase.steps, parts, check)
        held_out = self._batches(self.held_out, config, phase, 0, 0, parts)

        def measure(logits: Logits) -> Measured:
            task, examples = config.task, self.held_out.examples
            found = self.kind.predictions(task, examples, self.held_out.prepared, logits)
            return self.kind.compute_metrics(task, examples, found)

        searched = None
        if self.search:
            retrieval, open_search = self.search
            searched = open_search(config, self.tokenizer, retrieval)
        evaluated = HeldOutExamples(
            held_out,
            measure,
            self.kind.metrics(config.task, self.labels)[0],
            self.corpus(config),
            per_token=self.kind.per_token,
            per_example=self.kind.per_example,
            search=searched,
        )
        return PhaseData(train.shape, train, evaluated, "examples", train.strips)

    def metrics(self, task: TaskConfig) -> tuple[str, ...]:
        """Returns the names of the metrics of a run, as `TaskKind.metrics`: those of a search come
        first."""
        return (*(MEASURES if self.search else ()), *self.kind.metrics(task, self.labels))

    def with_outputs(self, config: Config, workdir: Workdir, job: Job) -> "TaskData":
        """Returns the data with the soft labels of the teacher among the targets for training."""
        if self.teacher is None:
            return self
        split = self.train
        outputs = self.teacher.outputs(split.examples, split.digest, workdir, job)
        soft = self.kind.soft_targets(outputs, split.prepared, config.task.temperature)
        prepared = dataclasses.replace(split.prepared, targets=split.prepared.targets | soft)
        return dataclasses.replace(self, train=dataclasses.replace(split, prepared=prepared))

    def fills(self, config: Config) -> None:
        return None

    def corpus(self, config: Config) -> Corpus:
        """Returns what a task has in place of the counts of a text's tokens."""
        return self.kind.corpus(self.train.prepared, config.model.vocab_size)

    def one_in_a_row(self, config: Config) -> ExampleBatches:
        """Returns the held-out examples, each in a row of its own."""
        phase = dataclasses.replace(config.phases[0], examples_per_row=1, row_length=0)
        return self._batches(self.held_out, config, phase, 0, 0, 1)

    def _batches(
        self,
        split: TaskSplit,
        config: Config,
        phase: PhaseConfig,
        seed: int,
        steps: int,
        parts: int,
        check: Callable[[Iterable[np.ndarray]], object] = lambda batches: None,
    ) -> ExampleBatches:
        return ExampleBatches(
            split.prepared.encoded,
            split.prepared.targets,
            phase,
            config.task.batches,
            seed,
            self.tokenizer.special.pad,
            steps=steps,
            parts=parts,
            padding_reads=config.task.answer_softmax == "row",
            check=check,
        )

    def warn(self, config: Config) -> None:
        """Warns of held-out examples of one class, with which no metric means anything; logs how
        many have texts of training examples."""
        held_out = self.held_out.examples
        if problem := self.kind.useless(held_out):
            logger.warning(f"{held_out.path}: {problem}")
        known = {self.kind.group(one) for one in self.train.examples.examples} - {None}
        if seen := sum(self.kind.group(one) in known for one in held_out.examples):
            number = count(len(held_out.examples), "held-out example")
            logger.info(f"{held_out.path}: of {number}, {seen:,} have texts of training examples")

    def check(self) -> None:
        """Everything was read into memory."""

    def _steps(self, config: Config) -> tuple[int, int]:
        """Returns the steps of an epoch, and those of all that are asked for."""
        (phase,) = config.phases
        per_epoch = -(-self.train.rows // phase.batch_size)
        return per_epoch, max(1, round(config.task.epochs * per_epoch))

    def decides_steps(self, config: Config) -> str:
        """Returns the key that decides the steps of a run: the epochs, or a limit."""
        return _limited(config.task, self._steps(config)[1])[1]

    def _planned(self, config: Config) -> Config:
        """Returns the configuration with the steps of the task's epochs, its warm-up, and an
        evaluation and checkpoints in each epoch.

        Raises:
            UserError: the configuration has other numbers for these than its task and the defaults.
        """
        per_epoch, asked = self._steps(config)
        steps, decides = _limited(config.task, asked)
        every = math.ceil(per_epoch * steps / asked / config.task.evaluations)
        saves = math.ceil(every / config.checkpoint.every_steps)  # for one evaluation
        save_every = math.ceil(every / saves)
        warmup = int(config.task.warmup_share * steps)
        (phase,) = config.phases
        # All at once: a schedule may not fit the steps with the warm-up that is given.
        planned = dataclasses.replace(
            config,
            phases=(dataclasses.replace(phase, steps=steps),),
            optimizer=dataclasses.replace(config.optimizer, warmup_steps=warmup),
            checkpoint=dataclasses.replace(config.checkpoint, every_steps=save_every),
            evaluation=dataclasses.replace(config.evaluation, every_steps=save_every * saves),
        )
        given, made, default = (flatten(to_dict(each)) for each in (config, planned, Config()))
        for key, cause in {"phases[0].steps": decides, **_DECIDED_BY}.items():
            if given[key] not in (made[key], default[key]):
                raise UserError(
                    f"config.{key}={given[key]} has no effect: config.{cause}={given[cause]} makes "
                    f"it {made[key]}; set config.{cause} instead"
                )
        return planned


def compares_examples(config: Config) -> bool:
    """Returns whether the loss of a task compares examples, so that none has a loss of its own;
    UserError as `TaskKind.with_head_settings`.

    config: before the files of the task are read.
    """
    kind = kind_of(config.task)
    return OBJECTIVES[kind.objectives[0]].across_rows(_with_head(kind, config, ("label",)))


def _with_head(kind: TaskKind, config: Config, labels: Sequence[str]) -> TaskModelConfig:
    head, problem = OBJECTIVES[kind.objectives[0]].head, kind.problem_type
    model = with_head(config.model, head, labels, problem_type=problem)
    return kind.with_head_settings(config.task, with_probe(model, config.task))


def _limited(task: TaskConfig, steps: int) -> tuple[int, str]:
    """Returns the steps of a run whose epochs make `steps`, and the key that decides them."""
    if task.most_steps and task.fewest_steps > task.most_steps:
        raise UserError(
            f"config.task.fewest_steps={task.fewest_steps} exceeds config.task.most_steps="
            f"{task.most_steps}; change one of them"
        )
    if steps < task.fewest_steps:
        return task.fewest_steps, "task.fewest_steps"
    if task.most_steps and steps > task.most_steps:
        return task.most_steps, "task.most_steps"
    return steps, "task.epochs"


def open_task(config: Config, workdir: Workdir) -> TaskData:
    """Reads and tokenizes the examples of `config.task`.

    Raises:
        UserError: a file or a row cannot be read, or there is no tokenizer.
    """
    check_task(config)
    kind, task = kind_of(config.task), config.task
    tokenizer = find_tokenizer(config, workdir, in_words=kind.in_words)
    context = TaskContext(task, tokenizer, config.model, config.phases[0].seq_length)

    def split(examples: Examples) -> TaskSplit:
        prepared = kind.prepare(context, examples)
        try:
            check_no_padding(prepared.encoded.by_sequence(), tokenizer, config.model)
        except UserError as error:
            raise UserError(f"{examples.path}: {error}") from None
        return TaskSplit(examples, prepared, kind.labels(examples), digest_of(kind, examples))

    with storage_errors(task.data):
        train, held_out = kind.read(task)
    return TaskData(task.data, kind, tokenizer, split(train), split(held_out))


def digest_of(kind: TaskKind, examples: Examples) -> str:
    """Returns the digest of what a model learns from, whatever its tokenizer."""
    return json_digest([kind.name, list(examples.labels), kind.content(examples)])
