"""Downloads a model by its name on the Hugging Face hub, only the files that an import reads."""

from pathlib import Path

from bert_jax.convert.weight_files import PYTORCH_FILES, SAFETENSORS_FILES, SETTINGS_FILES
from bert_jax.data_pipeline.errors import UserError

PREFIX = "hf:"


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
            allow_patterns=[*SETTINGS_FILES, *SAFETENSORS_FILES],
        )
        if not any(Path(folder).glob(SAFETENSORS_FILES[0])):
            commit = Path(folder).name
            folder = snapshot_download(
                repository, revision=commit, allow_patterns=[*SETTINGS_FILES, *PYTORCH_FILES]
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


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
