"""Holds a folder against the tables: what is refused, and what nothing reads, is said by name."""

import functools
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bert_jax.data_pipeline.folders.table import READ, REFUSED, Entry, find_entry
from bert_jax.data_pipeline.settings import shown, shown_name
from bert_jax.errors import UserError, first_few
from bert_jax.storage.remote import storage_errors

logger = logging.getLogger(__name__)
_MOST: Final = 8  # names of keys in one line


def check_files(folder: Path, entries: Sequence[Entry], parts: Collection[str] = ()) -> None:
    """Raises UserError for a file or a folder whose meaning would be lost: one that the table
    refuses, JSON that it does not know, and a folder with a config.json that nothing names.

    Args:
        parts: names of the folders that modules.json names.
    """
    with storage_errors(folder):
        found = {path.name: path.is_dir() for path in sorted(folder.iterdir())}
    for name, is_folder in found.items():
        entry = find_entry(f"{name}/" if is_folder else name, entries)
        where = folder / name
        if is_folder:
            is_part = entry.use == READ if entry else (where / "config.json").exists()
            if is_part and name not in parts:
                raise UserError(
                    f"{where}: looks like a part of the model, but no modules.json lists it; "
                    "move it away if the model does not need it"
                )
        elif entry is None and name.endswith(".json"):
            raise UserError(
                f"{where}: not a file that bert-jax knows; move it away if the model does not need "
                "it"
            )
    check_refused(found, entries, folder)


def check_refused(names: Collection[str], entries: Sequence[Entry], where: Path | str) -> None:
    """Raises UserError for the first of the files of a folder that the table refuses."""
    for name in sorted(names):
        entry = find_entry(name, entries)
        if entry and entry.use == REFUSED and not any(one in names for one in entry.unless):
            raise UserError(f"{where}/{name}: {entry.about}")


def check_keys(values: Mapping[str, Any], entries: Sequence[Entry], where: Path | str) -> None:
    """Logs the keys that the table does not know; UserError for a value that it refuses.

    Args:
        where: the file, for the messages.
    """
    unknown = []
    for name, value in values.items():
        entry = find_entry(name, entries)
        if entry is None:
            unknown.append(shown_name(name))
        elif entry.use == REFUSED and not entry.allows(value):
            raise UserError(f"{where}: {name}={shown(value)} is not supported: {entry.about}")
    if unknown:
        _warn(str(where), ", ".join(first_few(unknown, _MOST)))


@functools.cache  # once, although several parts of a program read a folder
def _warn(where: str, names: str) -> None:
    logger.warning("%s: ignored unknown keys: %s", where, names)
