"""A token store as the data of a run."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.config.serialization import to_dict
from bert_jax.config.task_settings import TaskConfig
from bert_jax.data_pipeline.masking.masking_settings import MODES
from bert_jax.data_pipeline.pairing.modes import PAIRS
from bert_jax.data_pipeline.store.quality import concerns
from bert_jax.data_pipeline.store.split import Split
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.store.watched_files import exit_on_truncated_map
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.distributed.job import Job
from bert_jax.errors import UserError, count
from bert_jax.exit_codes import STORAGE
from bert_jax.parallel import global_batch
from bert_jax.runtime.log import logger
from bert_jax.storage.remote import from_any_folder
from bert_jax.training.batches import phase_batches
from bert_jax.training.evaluation_pass import HeldOut
from bert_jax.training.fill_step import has_fills
from bert_jax.training.fills import HeldOutFills
from bert_jax.training.run_data import PhaseData
from bert_jax.workdir.layout import Workdir

_MOST_SINGLE = 0.75  # share of documents of one sentence, above which a run with pairs warns


@dataclasses.dataclass(frozen=True)
class StoreData:
    """See `run_data.RunData`."""

    store: TokenStore

    def __str__(self) -> str:
        held_out = self.store.held_out
        documents = count(len(held_out.document_lengths), "document")
        size = f"{len(held_out.tokens):,} held out in {documents}"
        what = "".join(f"; note: {concern.what}" for concern in concerns(self.store))
        return f"{len(self.store.train.tokens):,} training tokens, {size}{what}"

    @property
    def path(self) -> Path:
        return self.store.path

    @property
    def sources(self) -> tuple[str, ...]:
        return self.store.sources

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.store.tokenizer_path)

    @property
    def digests(self) -> Mapping[str, str]:
        return {}

    @property
    def files(self) -> Mapping[str, Any]:
        return {}

    @property
    def tokenizer_digest(self) -> str:
        return self.store.tokenizer_digest

    @property
    def train(self) -> Split:
        return self.store.train

    @property
    def held_out(self) -> Split:
        return self.store.held_out

    def configured(self, config: Config) -> Config:
        """Returns the configuration with the store's path from any folder.

        Raises:
            UserError: the vocabulary sizes of the model and the store differ.
        """
        check_vocabulary(config, self.store)
        path = from_any_folder(config.data.store)
        return dataclasses.replace(config, data=dataclasses.replace(config.data, store=path))

    def phase(self, config: Config, phase: PhaseConfig, mesh: jax.sharding.Mesh) -> PhaseData:
        global_batch.check_divides(mesh, phase.batch_size, phase.micro_batches)
        train = phase_batches(config, self.store, self.store.train, phase)
        words = self.store.words_per_token
        per_step = None if words is None else phase.batch_size * train.text_per_row() * words
        held_out = HeldOut(config, phase, self.store)
        own, theirs = config.data_of(phase).masking, config.data.masking
        differs = MODES[own].masks_specials != MODES[theirs].masks_specials
        corpus = held_out.corpus_of(own) if differs else None
        return PhaseData(phase, train, held_out, corpus=corpus, words_per_step=per_step)

    def with_outputs(self, config: Config, workdir: Workdir, job: Job) -> "StoreData":
        return self

    def fills(self, config: Config) -> HeldOutFills | None:
        if not has_fills(config):
            return None
        found = HeldOutFills(config, self.store)
        return found if found.sentences else None

    def warn(self, config: Config) -> None:
        """Warns if pairs teach nothing: a document of one sentence gets a random second one."""
        if config.data.pairing not in PAIRS:
            return
        single = float(np.mean(self.store.train.document_lengths == 1))
        if single > _MOST_SINGLE:
            logger.warning(
                f"{self.store.path}: {single:.0%} of the documents have one sentence, so almost "
                "all second sentences are random; consider --config.data.pairing=single"
            )

    def check(self) -> None:
        self.store.files.check()


def open_data(config: Config) -> StoreData:
    """Opens the store of a run; raises UserError as `open_store`, or for the config of a task."""
    given = to_dict(config.task)
    if changed := [key for key, value in to_dict(TaskConfig()).items() if given[key] != value]:
        key = changed[0]
        raise UserError(
            f"config.task.{key}={given[key]!r}: pretraining has no task; use `bert-jax finetune`"
        )
    store = open_store(config.data.store)
    exit_on_truncated_map(store.path, store.mapped, STORAGE)
    return StoreData(store)


def check_vocabulary(config: Config, store: TokenStore) -> None:
    """Raises UserError if the vocabulary sizes of the model and the store differ."""
    if config.model.vocab_size != store.vocab_size:
        raise UserError(
            f"config.model.vocab_size={config.model.vocab_size}, but ids in {store.path} go up to "
            f"{store.vocab_size - 1}; pass --config.model.vocab_size={store.vocab_size}"
        )
