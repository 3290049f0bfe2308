"""Protocols for training data; the only interface the training loop uses.

`store_data.StoreData` is a token store, for pretraining.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Protocol, Self

import jax
import numpy as np

from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.data_pipeline.assemble import Batch
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.distributed.job import Job
from bert_jax.objectives.corpus import Corpus
from bert_jax.training.evaluation_pass import EvaluationPass
from bert_jax.training.fills import HeldOutFills
from bert_jax.workdir import description
from bert_jax.workdir.layout import Workdir


class TrainBatches(Protocol):
    """The batches of a phase, a pure function of the step; see `data_pipeline.batch.Batches`."""

    rows_per_epoch: int  # in the unit of `PhaseConfig.batch_size`

    def compile_ahead(self) -> None: ...

    def fill_rate(self) -> tuple[float, float]: ...

    def batch(self, step: int, rows: Sequence[int] | np.ndarray | None = None) -> Batch: ...


@dataclasses.dataclass(frozen=True)
class PhaseData:
    """The data of a phase.

    Attributes:
        shape: the phase with the rows that its batches really have.
        unit: what the batch size and the size of an epoch count.
        strips: of a row, which the encoder reads as rows of their own.
        corpus: of the training batches; None: that of the held-out rows.
        words_per_step: see `config.words_seen`; None if the words of the text are not counted.
    """

    shape: PhaseConfig
    train: TrainBatches
    held_out: EvaluationPass
    unit: Literal["rows", "examples"] = "rows"
    strips: int = 1
    corpus: Corpus | None = None
    words_per_step: float | None = None

    @property
    def read(self) -> PhaseConfig:
        """`shape` with the rows that the encoder reads, a strip in each."""
        return dataclasses.replace(self.shape, batch_size=self.shape.batch_size * self.strips)


class RunData(description.Data, Protocol):
    """The data of a run, open; its text is their size, for the log.

    Attributes:
        path: as the configuration names it, for messages.
        sources: names of the parts that metrics are reported for.
        tokenizer: that made all ids.
        digests: of what else a run learns from, by key in its description's data.
        files: of a task: "train" and "held_out" -> names of the files, numbers of their examples
            and of the rows left out, for its model card; empty for a store, which has a manifest.
    """

    @property
    def path(self) -> PathLike[str] | str: ...

    @property
    def sources(self) -> tuple[str, ...]: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def digests(self) -> Mapping[str, str]: ...

    @property
    def files(self) -> Mapping[str, Any]: ...

    def configured(self, config: Config) -> Config:
        """Returns the configuration with what the data decide.

        Raises:
            UserError: the data do not fit the configuration.
        """

    def phase(self, config: Config, phase: PhaseConfig, mesh: jax.sharding.Mesh) -> PhaseData:
        """Returns the data of a phase, planned."""

    def with_outputs(self, config: Config, workdir: Workdir, job: Job) -> Self:
        """Returns the data with what is computed once and kept in the workdir, which belongs to the
        run by now; itself if there is nothing. All processes of the job call it.

        Raises:
            UserError, StorageError: as `shared_arrays`, or it cannot be computed.
        """

    def fills(self, config: Config) -> HeldOutFills | None:
        """Returns held-out sentences in which words are guessed at evaluations; None if the
        configuration asks for none, or the data have none."""

    def warn(self, config: Config) -> None:
        """Warns of data from which a run learns little."""

    def check(self) -> None:
        """Raises StorageError if the data changed since they were opened."""


OpenData = Callable[[Config], RunData]
