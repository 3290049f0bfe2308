"""Finds the token store of a run from any folder, also after both were moved together."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_jax.data_pipeline.store.manifest import MANIFEST, read_manifest, split_digest
from bert_jax.errors import UserError
from bert_jax.storage.remote import is_remote
from bert_jax.workdir.layout import Workdir


def find_store(workdir: Workdir, recorded: str, data: Mapping[str, Any]) -> str:
    """Returns the path of a run's token store: the recorded one, or the end of that path in a
    folder above the workdir. The recorded one if neither has the run's tokenizer and text.

    Args:
        recorded: config.data.store of the run.
        data: `data` of the run's description, with the digests.
    """
    if is_remote(recorded) or is_remote(workdir.path):
        return recorded
    candidates = _candidates(recorded, Path(os.path.abspath(workdir.path)))
    return next((str(path) for path in candidates if _is_store_of(path, data)), recorded)


def _candidates(recorded: str, workdir: Path) -> Iterator[Path]:
    path = Path(recorded)
    yield path
    parts = path.relative_to(path.anchor).parts
    for folder in workdir.parents:
        for start in range(len(parts)):
            yield folder.joinpath(*parts[start:])


def _is_store_of(path: Path, data: Mapping[str, Any]) -> bool:
    try:
        if not (path / MANIFEST).is_file():
            return False
        manifest = read_manifest(path)
    except (UserError, OSError):
        return False
    digests = manifest["tokenizer_digest"], split_digest("train", manifest["files"])
    return digests == (data.get("tokenizer"), data.get("train"))
