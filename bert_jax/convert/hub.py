"""Downloads a model by its name on the Hugging Face hub, only the files that an import reads."""

from collections.abc import Iterable
from pathlib import Path

from bert_jax.convert.folders.file_names import FILES
from bert_jax.convert.weight_files import (
    PART,
    PYTORCH,
    PYTORCH_FILES,
    SAFETENSORS_FILES,
    SETTINGS_FILES,
)
from bert_jax.data_pipeline.folders.table import NO_EFFECT
from bert_jax.errors import UserError

PREFIX = "hf:"
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


def download(name: str) -> Path:
    """Returns the local folder of a model, whose name is the commit.

    Without a network, the folder is that in the cache of huggingface_hub. HF_ENDPOINT, HF_HOME and
    HF_TOKEN have their usual meaning.

    Args:
        name: ORG/NAME, or ORG/NAME@REVISION with a branch, a tag or a commit.

    Raises:
        UserError: no such model or revision, access is denied, or there is neither a network nor a
            cached copy.
    """
    from huggingface_hub import errors, snapshot_download

    repository, _, revision = name.partition("@")
    where = f"{PREFIX}{name}"
    try:
        folder = snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=[
                *SETTINGS_FILES, *SAFETENSORS_FILES, *_below_parts(SAFETENSORS_FILES), _LAYERS,
                *_below_parts(SETTINGS_FILES),
            ],
            ignore_patterns=_LEFT_OUT,
        )  # fmt: skip
        encoder = SAFETENSORS_FILES[0]
        if not any(path for place in ("", "0_*/") for path in Path(folder).glob(place + encoder)):
            commit = Path(folder).name
            folder = snapshot_download(
                repository,
                revision=commit,
                allow_patterns=[*SETTINGS_FILES, *PYTORCH_FILES, *_below_parts(PYTORCH_FILES)],
                ignore_patterns=_LEFT_OUT,
            )
    except errors.GatedRepoError:
        raise UserError(f"{where}: access must be requested on its page; set HF_TOKEN") from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{where}: no such revision; give a branch, a tag or a commit") from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{where}: no such model; check the name, or set HF_TOKEN if it is private"
        ) from None
    except errors.HFValidationError as error:
        raise UserError(f"{where}: not a model's name ({_line(error)})") from None
    except (errors.LocalEntryNotFoundError, errors.HfHubHTTPError, OSError) as error:
        raise UserError(
            f"{where}: cannot be downloaded and is not in the cache ({_line(error)})"
        ) from None
    return Path(folder)


def _below_parts(patterns: Iterable[str]) -> list[str]:
    return [f"{PART}/{pattern}" for pattern in patterns]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
