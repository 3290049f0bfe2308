"""The files of a task as the data of a run."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Final

import jax
import numpy as np

from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.config.task_model import ProblemType, TaskModelConfig
from bert_jax.convert.layouts.layout import CLASSIFIER
from bert_jax.convert.task_heads import with_head
from bert_jax.data_pipeline.storage.digest import json_digest
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, count
from bert_jax.finetune.batches import ExampleBatches
from bert_jax.finetune.encoding import Encoded, encode
from bert_jax.finetune.examples import Examples, Kind
from bert_jax.finetune.held_out import HeldOutExamples
from bert_jax.finetune.task_files import labels_of, metric_names, read_splits, texts_of
from bert_jax.finetune.task_tokenizer import find_tokenizer
from bert_jax.objectives.corpus import Corpus
from bert_jax.parallel.mesh import axis_size
from bert_jax.parallel.partition import AXES
from bert_jax.runtime.log import logger
from bert_jax.training.run_data import PhaseData
from bert_jax.workdir.layout import Workdir

PROBLEMS: Final[Mapping[Kind, ProblemType]] = {
    "classification": "single_label_classification",
    "regression": "regression",
}
SHORTEST: Final = 5  # tokens of an example: room for a token of both texts of a pair


@dataclasses.dataclass(frozen=True)
class TaskSplit:
    """The training or the held-out examples.

    Attributes:
        digest: of their texts and labels.
    """

    examples: Examples
    encoded: Encoded
    digest: str

    @property
    def labels(self) -> list[int] | list[float]:
        return labels_of(self.examples)

    def __str__(self) -> str:
        said = [count(len(self.examples.examples), "example")]
        dropped = self.examples.dropped.items()
        said += [f"{number:,} rows dropped ({why})" for why, number in dropped]
        if self.encoded.cut:
            said.append(f"{self.encoded.cut:,} cut to the limit")
        return ", ".join(said)


@dataclasses.dataclass(frozen=True)
class TaskData:
    """See `run_data.RunData`; created by `open_task`."""

    path: str
    tokenizer: Tokenizer
    train: TaskSplit
    held_out: TaskSplit
    sources: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.train} for training; {self.held_out} held out"

    @property
    def tokenizer_digest(self) -> str:
        return self.tokenizer.digest

    @property
    def labels(self) -> tuple[str, ...]:
        return self.train.examples.labels

    def configured(self, config: Config) -> Config:
        """Returns the configuration with the head of the task."""
        problem = PROBLEMS[self.train.examples.kind]
        model = with_head(config.model, CLASSIFIER, self.labels, problem_type=problem)
        return config.with_model(model)

    def phase(self, config: Config, phase: PhaseConfig, mesh: jax.sharding.Mesh) -> PhaseData:
        """Returns the data of a phase; both splits have enough rows for every device."""
        parts = axis_size(mesh, AXES["batch"]) * phase.micro_batches
        train = self._batches(self.train, config, phase, config.seed, phase.steps, parts)
        held_out = self._batches(self.held_out, config, phase, 0, 0, parts)
        names = metric_names(config.task, self.labels)
        corpus = Corpus((), np.zeros(config.model.vocab_size, np.float32))
        labels = self.held_out.labels
        return PhaseData(
            train.shape, train, HeldOutExamples(held_out, labels, names, corpus), "examples"
        )

    def _batches(
        self,
        split: TaskSplit,
        config: Config,
        phase: PhaseConfig,
        seed: int,
        steps: int,
        parts: int,
    ) -> ExampleBatches:
        assert isinstance(config.model, TaskModelConfig)
        return ExampleBatches(
            split.encoded,
            label_array(split.labels, split.examples.kind),
            phase,
            config.task.batches,
            seed,
            self.tokenizer.special.pad,
            steps=steps,
            parts=parts,
        )

    def warn(self, config: Config) -> None:
        """Warns of held-out examples of one class, with which no metric means anything."""
        if len(set(self.held_out.labels)) == 1:
            logger.warning(f"{self.held_out.examples.path}: all held-out labels are the same")

    def check(self) -> None:
        """Everything was read into memory."""

    def planned(self, config: Config) -> Config:
        """Returns the configuration with the steps of the task's epochs, its warm-up, and an
        evaluation and checkpoints in each epoch."""
        (phase,) = config.phases
        per_epoch = -(-len(self.train.labels) // phase.batch_size)
        steps = max(1, round(config.task.epochs * per_epoch))
        every = math.ceil(per_epoch / config.task.evaluations)
        saves = math.ceil(every / config.checkpoint.every_steps)  # for one evaluation
        save_every = math.ceil(every / saves)
        warmup = int(config.task.warmup_share * steps)
        return dataclasses.replace(
            config.with_steps([steps]),
            optimizer=dataclasses.replace(config.optimizer, warmup_steps=warmup),
            checkpoint=dataclasses.replace(config.checkpoint, every_steps=save_every),
            evaluation=dataclasses.replace(config.evaluation, every_steps=save_every * saves),
        )


def open_task(config: Config, workdir: Workdir) -> TaskData:
    """Reads and tokenizes the examples of `config.task`.

    Raises:
        UserError: a file or a row cannot be read, or there is no tokenizer.
    """
    check_task(config)
    tokenizer = find_tokenizer(config, workdir)
    limit = config.phases[0].seq_length
    train, held_out = (
        TaskSplit(split, encode_examples(tokenizer, config, split, limit), _digest(split))
        for split in read_splits(config.task)
    )
    return TaskData(config.task.data, tokenizer, train, held_out)


def check_task(config: Config) -> None:
    """Raises UserError if a configuration is not that of a task."""
    if not config.task.name:
        raise UserError("config.task.name is empty; name the task, such as --config.task.name=sst2")
    if len(config.phases) != 1:
        raise UserError(f"config.phases: {len(config.phases)} phases; a task has one")
    if config.phases[0].seq_length < SHORTEST:
        raise UserError(
            f"config.phases[0].seq_length={config.phases[0].seq_length}; give {SHORTEST} or more"
        )


def encode_examples(
    tokenizer: Tokenizer, config: Config, examples: Examples, limit: int
) -> Encoded:
    return encode(tokenizer, config.model, texts_of(examples), limit)


def label_array(labels: Sequence[float], kind: Kind) -> np.ndarray:
    """Returns labels as a batch has them: int32 [E] classes, or float32 [E, 1] scores."""
    if kind == "regression":
        return np.array(labels, np.float32)[:, None]
    return np.array(labels, np.int32)


def _digest(examples: Examples) -> str:
    rows = [list(texts_of(examples)), list(labels_of(examples))]
    return json_digest([examples.kind, list(examples.labels), rows])
