"""Finds and keeps shards in working folders, local or in buckets, that several machines may share.

A working folder has `shards/`, a folder per shard, and settings.json: what determines the shards,
so that every machine works from the same text and settings. A shard of a bucket counts when its
summary is there, which is written last.
"""

import dataclasses
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from etils import epath

from bert_jax.data_pipeline.store.manifest import TOKENIZER
from bert_jax.data_pipeline.store_build import working_folder
from bert_jax.data_pipeline.store_build.shard_files import (
    PART,
    SUMMARY,
    Unit,
    damage,
    fetch,
    is_left,
)
from bert_jax.data_pipeline.store_build.units import SHARDS, commits_in, difference, module_of
from bert_jax.errors import UserError
from bert_jax.errors import count as of
from bert_jax.storage import json_record
from bert_jax.storage.outputs import OutputKind
from bert_jax.storage.read_files import objects
from bert_jax.storage.remote import is_remote, put, storage_errors

_log = logging.getLogger(__name__)

_SETTINGS: Final = "settings.json"
# What a working folder may have at its top, where it has no mark, as in a bucket.
_NAMES: Final = re.compile(rf"{re.escape(_SETTINGS)}|{TOKENIZER}|{SHARDS}|failure-[0-9a-f]+\.txt")
_FILLED: Final = "give the --work that --shard filled, or leave out --merge to build here"
_SHARD: Final = re.compile("[0-9a-f]{64}")  # the name of a shard's folder


def _is_work(folder: epath.Path) -> bool:
    """Returns whether a folder is a working folder, or a copy of one without its hidden files."""
    if not is_remote(folder) and working_folder.is_ours(Path(folder)):
        return True
    names = {path.name for path in folder.iterdir()}
    if not all(map(_NAMES.fullmatch, names)):
        return False
    shards = (path.name for path in (folder / SHARDS).iterdir()) if SHARDS in names else ()
    return bool(_read(f"{folder}/{_SETTINGS}")) or any(map(_SHARD.fullmatch, shards))


WORK: Final = OutputKind("working folder", _is_work, is_folder=True)


class ShardFolders:
    """The working folders of a build.

    Attributes:
        home: next to the store, where it is merged.
        main: the local one where this machine builds.
        bucket: the one of a bucket where this machine's shards go instead, "" if there is none.
        shared: where its shards go, absolute.
    """

    def __init__(self, out: Path, work: Sequence[str]) -> None:
        """
        Args:
            out: the store.
            work: further working folders; the first replaces `home` for new shards.
        """
        self.home = out.parent / f".{out.name}.building"
        self._local = [Path(folder) for folder in work if not is_remote(folder)]
        self._remote = [folder.rstrip("/") for folder in work if is_remote(folder)]
        self.main = self._local[0] if self._local else self.home
        self.bucket = self._remote[0] if self._remote and not self._local else ""
        self.shared = self.bucket or os.path.abspath(self.main)

    def claim(self) -> None:
        """Creates the folder where this machine builds; UserError if it is not ours."""
        working_folder.claim(self.main)
        (self.main / SHARDS).mkdir(exist_ok=True)
        _remove_left_parts(self.main / SHARDS)

    def check_there(self) -> None:
        """Raises UserError if a folder whose shards are to be merged is not there or has none."""
        for folder in self._local or ([] if self._remote else [self.home]):
            if not folder.is_dir():
                raise UserError(f"{folder}: no such folder; {_FILLED}")
        for name in self._remote or [os.fspath(self.main)]:
            if not self._names(name):
                raise UserError(f"{name}: no shards there; {_FILLED}")

    def check_division(self, count: int) -> None:
        """Raises UserError if this machine's shards go where those of another number of machines
        are: it would repeat some and leave out others."""
        others = self.machines
        if others and others != count and (built := len(self.finished())):
            raise UserError(
                f"{self.shared}: has {of(built, 'shard')} built with --shard=…/{others:,}, not "
                f"…/{count:,}; give --shard=I/{others}, or choose another --work"
            )

    @property
    def machines(self) -> int:
        """N of the `--shard=I/N` whose shards are there, of any machine; 0 if none."""
        return int(_read(f"{self.shared}/{_SETTINGS}").get("shards", 0))

    def sent(self, unit: Unit) -> Unit:
        """Returns a unit whose shard goes to the bucket, if there is one."""
        url = f"{self.bucket}/{SHARDS}/{unit.shard.name}" if self.bucket else ""
        return dataclasses.replace(unit, bucket=url)

    def check(self, settings: Mapping[str, Any]) -> int:
        """Raises UserError, saying which, if a folder was filled with other settings; returns the
        number of machines that its shards were divided among, 0 if unknown."""
        count = 0
        for folder in self._all():
            kept = _read(f"{folder}/{_SETTINGS}")
            if kept and (which := difference(kept["settings"], settings)):
                raise UserError(
                    f"{folder}: its shards were built from other text or settings: {which}; build "
                    "with the same, or choose another --work"
                )
            count = max(count, kept.get("shards", 0))
        return count

    def module_of(self, kind: str) -> str:
        """Returns the flag of the user's module that an unfinished build read a kind of source
        with, and its digest; "" if unknown."""
        return module_of(_read(f"{self.shared}/{_SETTINGS}").get("settings", {}), kind)

    def commits(self) -> dict[str, str]:
        """Returns the commits of what an unfinished build took from the hub."""
        return commits_in(_read(f"{self.shared}/{_SETTINGS}").get("settings", {}))

    def record(self, settings: Mapping[str, Any], count: int) -> None:
        """Records the settings, and the number of machines, where this machine's shards go."""
        if _read(f"{self.shared}/{_SETTINGS}") != {"settings": settings, "shards": count}:
            text = json.dumps({"settings": settings, "shards": count}, indent=1)
            with storage_errors(self.shared, "cannot be written"):
                put(f"{self.shared}/{_SETTINGS}", text.encode())

    def finished(self) -> set[str]:
        """Returns the names of the shards in `shared`."""
        return self._names(self.shared)

    def find(self, units: Sequence[Unit], *, fetch_them: bool) -> dict[Unit, Unit]:
        """Returns the units with an intact shard, each with the place of that shard. Removes
        damaged ones from the folders of this build, with a message each.

        Args:
            fetch_them: copy shards from buckets, which is needed to merge them.
        """
        places = [(folder, self._names(folder)) for folder in self._all()]
        with ThreadPoolExecutor() as pool:  # hashing releases the GIL
            found = pool.map(lambda unit: self._find(unit, places, fetch_them), units)
            return {unit: at for unit, at in zip(units, found, strict=True) if at is not None}

    def _all(self) -> list[str]:
        return [os.fspath(folder) for folder in self._local or [self.home]] + self._remote

    def _names(self, folder: str) -> set[str]:
        """Returns the names of the shards in a folder."""
        if not is_remote(folder):
            path = Path(folder) / SHARDS
            return set(os.listdir(path)) if path.is_dir() else set()
        with storage_errors(folder):
            names = objects(f"{folder}/{SHARDS}")
        return {os.path.dirname(name) for name in names if os.path.basename(name) == SUMMARY}

    def _find(
        self, unit: Unit, places: Sequence[tuple[str, set[str]]], fetch_them: bool
    ) -> Unit | None:
        for folder, names in places:
            if unit.shard.name not in names:
                continue
            remote = is_remote(folder)
            if remote and not fetch_them:
                return unit
            home = self.home if remote else Path(folder)
            at = dataclasses.replace(unit, shard=home / SHARDS / unit.shard.name)
            if remote:
                fetch(at, f"{folder}/{SHARDS}/{unit.shard.name}")
            if not (problem := damage(at)):
                return at
            _log.warning(f"{at.shard}: left by an earlier build, but {problem}; it is built again")
            if at.shard.parent.parent in (self.main, self.home):
                working_folder.remove(at.shard)
        return None


def _read(file: str) -> dict[str, Any]:
    """Returns the settings of a working folder, an empty mapping if there are none to read."""
    try:
        with storage_errors(file):
            return json_record.read_if_there(file, {"settings": dict, "shards": int}) or {}
    except ValueError:  # damaged: the shards' names say what they are made of
        return {}


def _remove_left_parts(shards: Path) -> None:
    """Removes what killed processes of this machine have left."""
    for part in shards.glob(f"*{PART}"):
        if is_left(part):
            shutil.rmtree(part, ignore_errors=True)
