"""Downloads a model by its name on the Hugging Face hub, only the files that are read."""

from collections import defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from bert_jax.convert.folders.file_names import FILES
from bert_jax.convert.model_files import CONFIG
from bert_jax.convert.weight_files import (
    OPTIMIZER_FILE,
    PART,
    PYTORCH,
    PYTORCH_FILES,
    SAFETENSORS,
    SAFETENSORS_FILES,
    SETTINGS_FILES,
)
from bert_jax.data_pipeline.folders.check import check_refused
from bert_jax.data_pipeline.folders.table import NO_EFFECT
from bert_jax.errors import UserError
from bert_jax.runtime.log import logger
from bert_jax.storage import hub

# The weights of a layer after the encoder, which older releases of sentence-transformers write.
_LAYERS = f"{PART.replace('0', '1', 1)}/{PYTORCH}"
# What is below the folders without effect, such as copies of the model for other libraries.
_LEFT_OUT = [
    f"{name}*"
    for entry in FILES
    if entry.use == NO_EFFECT
    for name in entry.names
    if name.endswith("/")
]


def download(source: str, *, weights: bool = True, optimizer: bool = False) -> Path:
    """Returns the local folder of a model, whose name is the commit; errors as `hub.fetch`, and if
    none of its files are there, or one that `check_listed` refuses.

    Args:
        source: `hf:OWNER/NAME[@REVISION]`.
        weights: False for the settings and the tokenizer alone.
        optimizer: the state of the optimizer, too.
    """
    name = hub.parse_model(source)
    hub.commit_of(name)
    listed: list[str] = []
    unlisted = ""
    try:
        listed = hub.files_of(name)
    except UserError as error:  # without a network, what the cache has is taken
        unlisted = str(error).removeprefix(f"{name}: ")
        logger.warning(
            "%s, list of its files: %s; files that the cache lacks, such as modules.json of a "
            "sentence encoder, go unnoticed", name, unlisted,
        )  # fmt: skip
    check_listed(listed, source, weights=weights)
    settings = [*SETTINGS_FILES, *_below_parts(SETTINGS_FILES)]
    if not weights:
        return _with_files(name, hub.fetch(name, settings, _LEFT_OUT))
    safetensors = [*SAFETENSORS_FILES, *_below_parts(SAFETENSORS_FILES), _LAYERS]
    safetensors += [OPTIMIZER_FILE] * optimizer
    folder = hub.fetch(name, [*settings, *safetensors], _LEFT_OUT)
    if _has_weights(folder, SAFETENSORS_FILES[0]):
        return folder
    files = [*settings, *PYTORCH_FILES, *_below_parts(PYTORCH_FILES)]
    folder = _with_files(name, hub.fetch(name, files, _LEFT_OUT))
    if unlisted and not _has_weights(folder, *PYTORCH_FILES):
        raise UserError(f"{name}/{SAFETENSORS}: {unlisted}")
    return folder


def check_listed(paths: Iterable[str], source: str, *, weights: bool = True) -> None:
    """Raises UserError for a file that `read_folder` would refuse, before any is copied: not all
    files of a model are. The copy would be read without its meaning.

    Args:
        paths: those of a folder elsewhere, from there on.
        weights: False if the tokenizer alone is read.
    """
    folders: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        folder, _, file = path.rpartition("/")
        folders[folder].add(file)
    entries = [entry for entry in FILES if weights or entry.unless]
    for folder, names in folders.items():
        if CONFIG in names and (not folder or fnmatchcase(folder, PART)):
            check_refused(names, entries, f"{source}/{folder}" if folder else source)


def _with_files(name: hub.HubName, folder: Path) -> Path:
    """Returns the folder; UserError if the repository has none of the files."""
    if not folder.is_dir():
        raise UserError(f"{name}: no files of a model are there; give another name")
    return folder


def _has_weights(folder: Path, *patterns: str) -> bool:
    places = [place + pattern for place in ("", "0_*/") for pattern in patterns]
    return any(path for place in places for path in folder.glob(place))


def _below_parts(patterns: Iterable[str]) -> list[str]:
    return [f"{PART}/{pattern}" for pattern in patterns]
