"""Whose a workdir is, and whether a run may resume in it."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from bert_jax.checkpoint import catalog
from bert_jax.config.schema import Config
from bert_jax.config.serialization import to_dict
from bert_jax.data_pipeline.storage.remote import (
    check_bucket,
    is_remote,
    open_path,
    storage_errors,
)
from bert_jax.data_pipeline.store.manifest import SPLITS, read_manifest, split_digest
from bert_jax.errors import UserError
from bert_jax.workdir import identity
from bert_jax.workdir.description import (
    check_name,
    is_description,
    is_marked,
    read,
    write_description,
)

# In a folder that is free: the lock of a run that died before it wrote config.json, what it had of
# that, and what a new file system holds.
_NO_CONTENT = re.compile(r"|\.lock|\.(config|tokenizer)\.json\.(\d+\.)?tmp|lost\+found")


def check_free(workdir: epath.PathLike) -> None:
    """Changes nothing in the folder.

    Raises:
        UserError: a run would write over files that are not of a run, or cannot read or name them.
    """
    check_name(os.fspath(workdir))
    folder = open_path(workdir)
    with storage_errors(folder, "cannot be the folder of a run"):
        if is_remote(folder):
            check_bucket(folder)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder}: a file; give a folder as --workdir")
        if (folder / "config.json").exists():
            _check_is_run(folder)
            return
        # A bucket may hold an object of the folder's own name.
        names = set(catalog.names_in(folder)) - ({folder.name} if is_remote(folder) else set())
    held = sorted(name for name in names if not _NO_CONTENT.fullmatch(name))
    if held and _first_meta(folder) is None:
        more = ", …" if len(held) > 3 else ""
        raise UserError(
            f"{folder}: holds {', '.join(held[:3])}{more}, and no config.json of a pretraining "
            "run; nothing was changed. Give a new or empty folder as --workdir"
        )


def _check_is_run(folder: epath.Path) -> None:
    try:
        read(folder)
    except UserError as error:
        if error.__cause__:  # of storage: nothing is known about what is there
            raise
        raise UserError(
            f"{folder}: its config.json is not of a pretraining run; give another --workdir"
        ) from None


def check_first(workdir: epath.Path, config: Config) -> None:
    """What can be refused at once: before JAX starts, a store is read or a plan is made.

    `begin` decides in the end; this saves hours of verifying the wrong store.

    Raises:
        UserError: as `check_free` and `begin`, or no token store where the configuration says.
    """
    check_free(workdir)
    if not config.data.store:
        raise UserError(
            "config.data.store is empty; pass --config.data.store=… with the folder of a token "
            "store (`bert-jax data build` makes one)"
        )
    if not catalog.complete_steps(workdir) or not is_marked(workdir):
        return
    old = read(workdir)
    step = _newest_own(workdir, old)
    if step is None:
        return
    new = {"config": to_dict(config), "data": dict(old["data"])}
    manifest = read_manifest(config.data.store)
    new["data"]["tokenizer"] = manifest["tokenizer_digest"]
    new["data"] |= {name: split_digest(name, manifest["files"]) for name in SPLITS}
    identity.check(workdir, old, new, step)


def begin(
    workdir: epath.Path, description: Mapping[str, Any], *, adopt: bool = False
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Marks a free folder as the run's, or finds out which run's it is; called by one process.

    Args:
        description: what the run is to be, without an id.
        adopt: checkpoints of other runs that are there belong to this one from now on.

    Returns:
        The description by which checkpoints are told to be the run's: the one it was last started
        with, the new one where there was none; with its `run_id` and all it `adopted`. And what it
        adopts now, an entry for each checkpoint.

    Raises:
        UserError: as `check_free` and `claim`. Nothing in the folder was changed.
        StorageError: config.json cannot be written.
    """
    check_free(workdir)
    marked = is_marked(workdir)
    old = read(workdir) if marked else None if adopt else _first_meta(workdir)
    if old is None:
        run = {**description, "run_id": identity.new_id()}
        write_description(workdir, run)
    elif not catalog.all_steps(workdir) and not catalog.list_quarantined(workdir):
        run = {**description, "run_id": _id_from_nothing(old, description)}
    else:
        step = _newest_own(workdir, old)
        if step is not None:
            identity.check(workdir, old, description, step)
        run = {**old, "run_id": old.get("run_id") or _id_of_own(workdir, old)}
    adopted = _adopted(workdir, run) if adopt else []
    if adopted:
        run = {**run, "adopted": [*run.get("adopted", []), *adopted]}
    return run, adopted


def _id_from_nothing(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The old id, under which a backup of the checkpoints can be restored; a new one where what the
    parameters mean is different."""
    found = identity.compare(old, new, 0)
    return (not found.refused and old.get("run_id")) or identity.new_id()


def _id_of_own(workdir: epath.Path, run: Mapping[str, Any]) -> str:
    """Of the newest checkpoint of a run whose config.json has no id, a new one if that has none."""
    own = [meta for meta in _metas(workdir) if not identity.foreign(meta, run)]
    return next(filter(None, (meta.get("run_id") for meta in own)), identity.new_id())


def _adopted(workdir: epath.Path, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An entry for every checkpoint there that is not the run's."""
    judged = [(meta, identity.foreign(meta, run)) for meta in _metas(workdir)]
    return [identity.adoption(meta, why) for meta, why in judged if why]


def _newest_own(workdir: epath.Path, run: Mapping[str, Any]) -> int | None:
    """The step of the newest complete checkpoint of the run, as far as one can tell."""
    for step in reversed(catalog.complete_steps(workdir)):
        try:
            if not identity.foreign(catalog.read_meta(workdir, step), run):
                return step
        except catalog.DamagedError:  # whosever it was
            return step
    return None


def _metas(workdir: epath.Path) -> Iterator[dict[str, Any]]:
    """The records of all checkpoints that can be read, the newest first."""
    for step in reversed(catalog.all_steps(workdir)):
        with contextlib.suppress(catalog.DamagedError):
            yield catalog.read_meta(workdir, step)


def _first_meta(workdir: epath.Path) -> dict[str, Any] | None:
    return next(filter(is_description, _metas(workdir)), None)


def claim(
    workdir: epath.Path, description: dict[str, Any], *, resuming_at: int | None
) -> list[str]:
    """Writes the description; when the run goes on, first checks that it may.

    Args:
        resuming_at: the step of the checkpoint to go on from, None for a new run.

    Returns:
        A line for everything that is different from before and may be: settings, versions of
        packages, devices.

    Raises:
        UserError: the workdir was started with another store, tokenizer or setting that decides
            what a step sees or what parameters mean, or a phase that is finished would change.
            After one line that names every such key comes a diff, a line for each old and new
            value.
    """
    changed = []
    if resuming_at is not None:
        # Where config.json is lost, the newest checkpoint says under what the run was begun.
        old = read(workdir) if is_marked(workdir) else _first_meta(workdir)
        if old is not None:
            identity.check(workdir, old, description, resuming_at)
            changed = identity.changes(old, description)
    write_description(workdir, description)
    return changed
