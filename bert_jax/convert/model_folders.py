"""Finds the folder of a model: local, a zip, in a bucket or on the hub; loads its tokenizer.

Nothing here imports JAX: building a token store does not need it, and its workers start faster.
"""

import logging
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from bert_jax.convert import checksums, hub_model
from bert_jax.convert.google_files import FILES, is_google_bert
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
from bert_jax.storage.read_files import local_path, objects, path_of
from bert_jax.storage.reader_errors import ZIP_ERRORS, one_line
from bert_jax.storage.regular_file import check_not_special, check_regular
from bert_jax.storage.remote import is_remote, storage_errors


@contextmanager
def local_folder(source: str, *, weights: bool = True, optimizer: bool = False) -> Iterator[Path]:
    """Yields the local folder with a model; what must be unpacked is in a temporary one, a copy
    from a bucket stays in the cache.

    Args:
        source: a folder written by transformers or google-research/bert, local or in a bucket; a
            zip of the latter; or `hf:OWNER/NAME[@REVISION]`, a model on the Hugging Face hub.
        weights: False for the settings and the tokenizer alone, if it must be copied.
        optimizer: the state of the optimizer, too, if it is downloaded.

    Raises:
        UserError: a model on the hub, a zip or a bucket that cannot be read, or has a file whose
            meaning would be lost; a file that is no zip, or no such folder.
    """
    if hub.is_hub(source):
        folder = hub_model.download(source, weights=weights, optimizer=optimizer)
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
        yield local_path(source)


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
        listed = objects(source)
    hub_model.check_listed(listed, source, weights=weights)
    names = [name for name in listed if _is_of_model(name, weights=weights)]
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
