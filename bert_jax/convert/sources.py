"""Finds and reads a model of any kind: a folder, a zip, a model on the hub, a run's checkpoint."""

import logging
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import numpy as np
from etils import epath

from bert_jax.checkpoint import manager as checkpoint
from bert_jax.config.optimizer_settings import Weights
from bert_jax.config.recorded import config_of, model_of
from bert_jax.config.schema import ModelConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.convert import checksums, hub_model, weights
from bert_jax.convert.google_bert import FILES, is_google_bert, read_google_bert
from bert_jax.convert.layouts.layout import TAGGER
from bert_jax.convert.reader import StoredModel, read_folder
from bert_jax.convert.sentence_encoder import encoder_folder
from bert_jax.convert.stored_tokenizer import read_tokenizer
from bert_jax.convert.weight_files import (
    OPTIMIZER_FILE,
    PART,
    PYTORCH_FILES,
    SAFETENSORS_FILES,
    SETTINGS_FILES,
)
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, hub_hint
from bert_jax.runtime.log import logger
from bert_jax.storage import hub, local_copy
from bert_jax.storage.read_files import objects, path_of, read_bytes
from bert_jax.storage.reader_errors import ZIP_ERRORS, one_line
from bert_jax.storage.regular_file import TOKENIZER, check_not_special, check_regular
from bert_jax.storage.remote import is_remote, storage_errors
from bert_jax.workdir.layout import Workdir, split_step


@dataclass(frozen=True)
class ReadModel:
    """A model's parameters with what they mean.

    Attributes:
        source: as the user gave it.
        params: nested dict of float32 NumPy arrays, without the heads and the pooler that it lacks.
        config: its architecture; its vocabulary has the padding rows of `params`.
        ignored: the stored tensors, by name, of which `params` have no counterpart.
        sentence_parts: of a sentence encoder, the pool and the layers after the model, in words.
        origin: of a checkpoint, name and commit of the model on the hub that its run started from.
    """

    source: str
    params: Mapping[str, Any]
    config: ModelConfig
    tokenizer: Tokenizer
    ignored: tuple[str, ...] = ()
    origin: str = ""
    sentence_parts: str = ""


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
    parts = stored.sentence.titles if stored.sentence else ""
    return ReadModel(source, params, stored.config, stored.tokenizer, ignored, sentence_parts=parts)


def read_stored(folder: Path) -> StoredModel:
    """Reads a local folder of google-research/bert, of transformers or of an export; UserError if
    it has no model of one of these, or a damaged one."""
    return read_google_bert(folder) if is_google_bert(folder) else read_folder(folder)


def read_checkpoint(
    source: str, run: Workdir, step: int | None, which: Weights = "last"
) -> ReadModel:
    """Reads a checkpoint, the newest without a step; UserError and StorageError as `read_model`."""
    params, meta = checkpoint.load_params(run, step, which)
    config, tokenizer = model_of(meta), read_run_tokenizer(run, meta)
    arrays, origin = jax.tree.map(np.asarray, params), str(meta.get("init_origin", ""))
    return ReadModel(source, arrays, config, tokenizer, origin=origin)


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


@contextmanager
def local_folder(source: str, *, weights: bool = True) -> Iterator[Path]:
    """Yields the local folder with a model; what must be unpacked is in a temporary one, a copy
    from a bucket stays in the cache.

    Args:
        source: a folder written by transformers or google-research/bert, local or in a bucket; a
            zip of the latter; or `hf:OWNER/NAME[@REVISION]`, a model on the Hugging Face hub.
        weights: False for the settings and the tokenizer alone, if it must be copied.

    Raises:
        UserError: a model on the hub, a zip or a bucket that cannot be read, a file that is no zip,
            or no such folder.
    """
    if hub.is_hub(source):
        folder = hub_model.download(source, weights=weights)
        with _naming(source, folder):
            yield folder
    elif is_remote(source):
        copy = _copied(source, weights=weights)
        with _naming(source, copy):
            yield copy
    elif _is_zip(source):
        temporary = Path(tempfile.mkdtemp(prefix="bert-jax-"))
        try:
            with _naming(source, temporary):
                _unpack(source, temporary)
                yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    elif Path(source).is_file():
        raise UserError(f"{source}: a file, but not a zip; give a folder or a zip with a model")
    elif not Path(source).is_dir():
        check_not_special(source)
        on_hub = f"; a model on the Hugging Face hub is {hub.MODEL_FORM}"
        raise UserError(f"{source}: no such folder{hub_hint(source) or on_hub}")
    else:
        yield Path(source)


@contextmanager
def model_folder(source: Path | str) -> Iterator[Path]:
    """Yields a folder for `read_folder`: the given one, or the copy of one on the hub; errors as
    `local_folder`."""
    if hub.is_hub(source):
        with local_folder(str(source)) as folder:
            yield folder
    else:
        yield Path(source)


def load_tokenizer(source: Path | str, *, lowercase: bool | None = None) -> Tokenizer:
    """Loads a tokenizer from a file, see `Tokenizer.load`, or that of a model on the hub, with the
    settings that its repository has.

    Raises:
        UserError: as `Tokenizer.load`, `hub.fetch` and `read_tokenizer`.
    """
    if not hub.is_hub(source):
        return Tokenizer.load(source, lowercase=lowercase)
    found = tokenizer_of_model(str(source))
    found.commits = hub.recorded([hub.parse_model(str(source))])
    return found


def tokenizer_of_model(source: str) -> Tokenizer:
    """Loads the tokenizer of a model with its settings; errors as `local_folder` and
    `read_tokenizer`."""
    with local_folder(source, weights=False) as folder:
        return read_tokenizer(*encoder_folder(folder, checksums.read_checksums(folder)))


@contextmanager
def _naming(source: str, temporary: Path) -> Iterator[None]:
    """Messages about files in the temporary folder name those of the source, which the user has."""

    def rename(record: logging.LogRecord) -> bool:
        record.msg, record.args = record.getMessage().replace(str(temporary), source), ()
        return True

    logger.addFilter(rename)
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace(str(temporary), source)) from None
    finally:
        logger.removeFilter(rename)


def _is_zip(source: str) -> bool:
    """Returns whether a path is a zip; UserError for a pipe or a device."""
    if os.path.exists(source):
        check_regular(source)
    return zipfile.is_zipfile(source)


def _copied(source: str, *, weights: bool) -> Path:
    """Returns a local folder with the files of a model in a bucket."""
    with storage_errors(source):
        names = [name for name in objects(source) if _is_of_model(name, weights=weights)]
    if not names:
        raise UserError(f"{source}: no files of a model are there; check the spelling")
    top = path_of(source)
    return local_copy.local_folder([top / name for name in names], top)


def _is_of_model(name: str, *, weights: bool) -> bool:
    """Returns whether a file below the folder of a model is one of its own."""
    *folders, file = name.split("/")
    patterns = (*SAFETENSORS_FILES, *PYTORCH_FILES, OPTIMIZER_FILE) if weights else ()
    known = any(fnmatch(file, pattern) for pattern in (*SETTINGS_FILES, *patterns))
    known = known or (weights and FILES.fullmatch(file) is not None)
    return known and all(fnmatch(folder, PART) for folder in folders)


def _unpack(path: str, folder: Path) -> None:
    """Unpacks the files of a model, which released zips hold in a folder of their own."""
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = PurePosixPath(member.filename).name
                if FILES.fullmatch(name) and not member.is_dir():
                    if (folder / name).exists():
                        raise UserError(
                            f"{path}: holds {name} twice; unpack it and give the folder of one"
                        )
                    with archive.open(member) as stream, (folder / name).open("wb") as file:
                        shutil.copyfileobj(stream, file)
    except UserError:
        raise
    except ZIP_ERRORS as error:
        raise UserError(
            f"{path}: cannot be unpacked ({one_line(error)}); download it again"
        ) from None
    if not is_google_bert(folder):
        raise UserError(
            f"{path}: holds no model of google-research/bert (no bert_config.json), or of /albert"
        )
