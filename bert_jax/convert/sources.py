"""Reads a model of any kind: a folder, a zip, a model on the hub, a run's checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from bert_jax.checkpoint import manager as checkpoint
from bert_jax.config.optimizer_settings import Weights
from bert_jax.config.recorded import config_of, trained_model_of
from bert_jax.config.schema import ModelConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.convert import weights
from bert_jax.convert.google_bert import read_google_bert
from bert_jax.convert.google_files import is_google_bert
from bert_jax.convert.hf_config import FORM
from bert_jax.convert.layouts.layout import TAGGER
from bert_jax.convert.model_folders import local_folder
from bert_jax.convert.reader import StoredModel, read_folder
from bert_jax.convert.run_encoder import encoder_of_run
from bert_jax.convert.sentence_encoder import SentenceEncoder
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.storage.read_files import read_bytes
from bert_jax.storage.regular_file import TOKENIZER
from bert_jax.storage.remote import storage_errors
from bert_jax.workdir.layout import Workdir, split_step


@dataclass(frozen=True)
class ReadModel:
    """A model's parameters with what they mean.

    Attributes:
        source: as the user gave it.
        params: nested dict of float32 NumPy arrays, without the heads and the pooler that it lacks.
        config: its architecture; its vocabulary has the padding rows of `params`.
        ignored: the stored tensors, by name, of which `params` have no counterpart.
        sentence: what makes vectors of texts with the model, if its folder or its run has that.
        trained_form: of an export, what `to_config_json` took; empty where nothing is recorded.
        trained_length: of an export, tokens of the longest sequences in training; None if unknown.
        origin: of a checkpoint, name and commit of the model on the hub that its run started from.
    """

    source: str
    params: Mapping[str, Any]
    config: ModelConfig
    tokenizer: Tokenizer
    ignored: tuple[str, ...] = ()
    origin: str = ""
    sentence: SentenceEncoder | None = None
    trained_form: Mapping[str, Any] = field(default_factory=dict)
    trained_length: int | None = None


def read_model(source: str) -> ReadModel:
    """Reads a model of any kind.

    Args:
        source: the workdir of a run, also as `WORKDIR@STEP` (without a step: the newest); or as
            `local_folder`.

    Raises:
        UserError: no such model or checkpoint, or it is damaged or of another family; the message
            names the source.
        StorageError: a checkpoint is damaged.
    """
    path, step = split_step(source)
    run = Workdir.open(path)
    if run.is_run():
        return read_checkpoint(source, run, step)
    with local_folder(source) as folder:
        stored = read_stored(folder)
        try:
            params = weights.from_transformers(stored.tensors, stored.config, stored.pad_token_id)
        except UserError as error:  # it names a tensor
            raise UserError(f"{source}: {error}") from None
        ignored = tuple(weights.leftover(stored.tensors, stored.config))
    return ReadModel(
        source, params, stored.config, stored.tokenizer, ignored, sentence=stored.sentence,
        trained_form=stored.values.get(FORM, {}), trained_length=stored.trained_length,
    )  # fmt: skip


def read_stored(folder: Path) -> StoredModel:
    """Reads a local folder of google-research/bert, of transformers or of an export; UserError if
    it has no model of one of these, or a damaged one."""
    return read_google_bert(folder) if is_google_bert(folder) else read_folder(folder)


def read_checkpoint(
    source: str, run: Workdir, step: int | None, which: Weights = "last"
) -> ReadModel:
    """Reads a checkpoint, the newest without a step; UserError and StorageError as `read_model`."""
    params, meta = checkpoint.load_params(run, step, which)
    config, tokenizer = trained_model_of(meta), read_run_tokenizer(run, meta)
    arrays, origin = jax.tree.map(np.asarray, params), str(meta.get("init_origin", ""))
    sentence = encoder_of_run(config_of(meta), arrays)
    return ReadModel(source, arrays, config, tokenizer, origin=origin, sentence=sentence)


def read_run_tokenizer(run: Workdir, meta: Mapping[str, Any]) -> Tokenizer:
    """Reads the tokenizer of a run as it reads the texts of the run's task; errors as
    `read_trained_tokenizer`.

    meta: of a checkpoint.
    """
    found = read_trained_tokenizer(run.tokenizer, meta["data"]["tokenizer"])
    config = config_of(meta)
    in_words = isinstance(config.model, TaskModelConfig) and config.model.head.name == TAGGER
    split = config.task.split_special_tokens
    return found.for_task(in_words=in_words, split_special_tokens=split)


def read_trained_tokenizer(file: epath.Path, digest: str) -> Tokenizer:
    """Reads the tokenizer in a workdir; UserError if it is missing, or is not the one that a
    checkpoint was trained with, by its sha256."""
    remedy = f"copy the tokenizer.json with sha256 {digest[:12]}… there from the token store"
    with storage_errors(file):
        data = read_bytes(file, TOKENIZER) if file.exists() else None
    if data is None:
        raise UserError(f"{file}: missing; {remedy}")
    tokenizer = Tokenizer(data, name=str(file))
    if tokenizer.digest != digest:
        raise UserError(f"{file}: not the one the checkpoint was trained with; {remedy}")
    return tokenizer
