"""Checks the files of a model's folder and reads those that are JSON."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bert_jax.convert import checksums
from bert_jax.errors import UserError
from bert_jax.storage import json_record
from bert_jax.storage.read_files import open_bytes
from bert_jax.storage.regular_file import RECORD
from bert_jax.storage.remote import storage_errors

Sums = Mapping[str, str] | None  # of an exported folder
CONFIG: Final = "config.json"
# The folders of an export of two networks.
DISCRIMINATOR: Final = "discriminator"
GENERATOR: Final = "generator"
_POINTER = b"version https://git-lfs."  # begins the file that stands for one in a clone


def check_one(folder: Path, where: str = "") -> None:
    """Raises UserError for a folder of several models, such as both of a run with a generator;
    where: the key that names it, for the message."""
    if (folder / CONFIG).exists():
        return
    inner = sorted(one.name for one in folder.iterdir() if (one / CONFIG).is_file())
    where = where or str(folder)
    if inner == [DISCRIMINATOR, GENERATOR]:
        raise UserError(
            f"{where}: has two models; give {folder / GENERATOR} where masked tokens are predicted "
            f"(fill, a teacher in pretraining), else {folder / DISCRIMINATOR}"
        )
    if inner:
        raise UserError(
            f"{where}: has no model, but folders that have one, {', '.join(inner)[:200]}; give "
            "one of them"
        )


def check_links(folder: Path, root: Path | None = None) -> None:
    """Raises UserError for a symbolic link to a file outside; the hub's cache has such links to the
    blobs beside its snapshots. Call it before a file of the folder is read.

    Args:
        root: of the model, if `folder` is in it; a link may lead to any file there.
    """
    real = (root or folder).resolve()
    allowed = [real, *([real.parents[1] / "blobs"] if real.parent.name == "snapshots" else [])]
    with storage_errors(folder):
        paths = list(folder.iterdir())
    for path in paths:
        # `Path.resolve` fails for a link to itself.
        target = Path(os.path.realpath(path))
        if path.is_symlink() and not any(map(target.is_relative_to, allowed)):
            raise UserError(f"{path}: a symbolic link to a file outside; copy the file there")


@contextmanager
def checked_file(folder: Path, name: str, sums: Sums) -> Iterator[None]:
    """Raises UserError for a file of which a clone has only the pointer, or one that differs from
    SHA256SUMS, or that changes within, where it is read."""
    with storage_errors(folder / name), open_bytes(folder / name) as stream:
        if stream.read(len(_POINTER)) == _POINTER:
            raise UserError(f"{folder / name}: a pointer of Git LFS; fetch it with `git lfs pull`")
    with checksums.checked(folder, name, sums):
        yield


def read_json(file: Path, sums: Sums = None, limit: int = RECORD) -> dict[str, Any]:
    """Returns the object in a JSON file of at most `limit` bytes; UserError if it is missing,
    damaged or not an object."""
    value = read_value(file, sums, limit)
    if not isinstance(value, dict):
        raise UserError(f"{file}: not a JSON object; export the model again")
    return value


def read_value(file: Path, sums: Sums = None, limit: int = RECORD) -> Any:
    """Returns the value in a JSON file of at most `limit` bytes; UserError if it is missing or
    damaged."""
    try:
        with storage_errors(file):
            value = json_record.read_json(file, limit=limit)
    except UserError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise UserError(f"{file}: missing; give a folder with an exported model") from None
    except ValueError as error:
        raise UserError(f"{file}: {error}; export the model again") from None
    if sums is not None:
        with checksums.checked(file.parent, file.name, sums):
            value = json_record.read_json(file, limit=limit)  # what was checked
    return value
