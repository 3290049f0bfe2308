"""Claims a workdir for a run, and checks that the run may resume. In the order of a start:

1. `check_before_start`, before JAX starts; changes nothing.
2. `lock.lock`: no other trainer runs in the workdir from here on.
3. `mark_or_identify`: writes the config.json of a new run, or reads whose workdir it is.
4. The run restores a checkpoint.
5. `update_config_json`: checks the run against that checkpoint and writes its config.json.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from etils import epath

from bert_jax.checkpoint import catalog
from bert_jax.config.recorded import recorded
from bert_jax.config.schema import Config
from bert_jax.config.serialization import to_dict
from bert_jax.data_pipeline.store.manifest import SPLITS, read_manifest, split_digest
from bert_jax.errors import UserError
from bert_jax.storage.outputs import OutputKind, check_inputs
from bert_jax.storage.remote import check_bucket, is_remote, storage_errors
from bert_jax.workdir import identity
from bert_jax.workdir.description import (
    check_name,
    has_config_json,
    is_description,
    read_description,
    write_config_json,
)
from bert_jax.workdir.inputs import inputs_of_config
from bert_jax.workdir.layout import MAY_PRECEDE_CONFIG, Workdir


def check_free(workdir: Workdir) -> None:
    """Checks that the folder is free or the workdir of a run; changes nothing in it.

    Raises:
        UserError: the folder holds files that no run wrote, or cannot be read or named.
    """
    folder = workdir.path
    check_name(os.fspath(folder))
    with storage_errors(folder, "cannot be used as a workdir"):
        if is_remote(folder):
            check_bucket(folder)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder}: a file; give a folder as --workdir")
        if workdir.config_json.exists():
            _check_is_run(workdir)
            return
        # A bucket may hold an object with the folder's own name.
        names = set(catalog.names_in(folder)) - ({folder.name} if is_remote(folder) else set())
    unknown = sorted(name for name in names if not MAY_PRECEDE_CONFIG.fullmatch(name))
    if unknown and _first_meta(workdir) is None:
        more = ", …" if len(unknown) > 3 else ""
        raise UserError(
            f"{folder}: holds {', '.join(unknown[:3])}{more}, but no config.json of a pretraining "
            "run; nothing was changed. Give a new or empty folder as --workdir"
        )


def _is_run(folder: epath.Path) -> bool:
    check_free(Workdir.open(folder))
    return True


# The launcher's folder there has the config file that travelled with the job.
RUN: Final = OutputKind("run", _is_run, is_folder=True, holds=("launch",))
# `bert-jax ablate` has the tasks of a run in its own folder.
TASK_RUN: Final = dataclasses.replace(RUN, places=("tasks",))


def _check_is_run(workdir: Workdir) -> None:
    try:
        read_description(workdir)
    except UserError as error:
        if error.__cause__:  # a storage error: the content is unknown
            raise
        raise UserError(
            f"{workdir}: its config.json is not from a pretraining run; give another --workdir"
        ) from None


def check_before_start(workdir: Workdir, config: Config) -> None:
    """Checks what can be checked before JAX starts, the store is read or a plan is computed.

    `mark_or_identify` checks everything; this avoids hours spent on verifying the wrong store.

    Raises:
        UserError: as `check_free`, `check_inputs` and `mark_or_identify`, or config.data.store has
            no token store.
    """
    kind = TASK_RUN if config.task.name else RUN
    check_inputs(workdir.path, kind, inputs_of_config(to_dict(config)))
    check_free(workdir)
    if not config.task.name and not config.data.store:
        raise UserError(
            "config.data.store is empty; pass --config.data.store=… with the folder of a token "
            "store (`bert-jax data build` makes one)"
        )
    if not catalog.complete_steps(workdir.checkpoints) or not has_config_json(workdir):
        return
    old = read_description(workdir)
    step = _newest_own(workdir, old)
    if step is None:
        return
    new = {"config": recorded(config), "data": dict(old["data"])}
    if not config.task.name:  # the files of a task are read before
        manifest = read_manifest(config.data.store)
        new["data"]["tokenizer"] = manifest["tokenizer_digest"]
        new["data"] |= {name: split_digest(name, manifest["files"]) for name in SPLITS}
    identity.check(workdir, old, new, step)


def recorded_run(workdir: Workdir, config: Config) -> tuple[dict[str, Any] | None, bool]:
    """Returns the description of the run in a workdir, and whether it has a checkpoint.

    A run without one is started from scratch; None if that would be another run, or there is none.
    Changes nothing.

    Raises:
        UserError: as `check_free`.
    """
    check_free(workdir)
    old = read_description(workdir) if has_config_json(workdir) else _first_meta(workdir)
    started = has_checkpoints(workdir)
    if old is None or started:
        return old, started
    new = {"config": to_dict(config), "data": old["data"]}
    return None if identity.compare(old, new, 0).refused else old, False


def has_checkpoints(workdir: Workdir) -> bool:
    """Returns whether a workdir holds checkpoints, those in quarantine included."""
    return bool(
        catalog.all_steps(workdir.checkpoints) or catalog.list_quarantined(workdir.quarantine)
    )


def mark_or_identify(
    workdir: Workdir, description: Mapping[str, Any], *, adopt: bool = False
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Marks a free folder as the run's with its config.json, or identifies the run that owns it.

    Called by one process, which holds the lock.

    Args:
        description: of the new run, without an id.
        adopt: the run adopts the checkpoints of other runs in the folder.

    Returns:
        The description that identifies the run's checkpoints (the one it was last started with, or
        the new one for a new run) with its `run_id` and everything it `adopted`; and the entries of
        the checkpoints that it adopts now.

    Raises:
        UserError: as `check_free` and `update_config_json`. Nothing in the folder was changed.
        StorageError: config.json cannot be written.
    """
    check_free(workdir)
    marked = has_config_json(workdir)
    old = read_description(workdir) if marked else None if adopt else _first_meta(workdir)
    if old is None:
        run = {**description, "run_id": identity.new_id()}
        write_config_json(workdir, run)
    elif not has_checkpoints(workdir):
        run = {**description, "run_id": _id_without_checkpoints(old, description)}
    else:
        step = _newest_own(workdir, old)
        if step is not None:
            identity.check(workdir, old, description, step)
        run = {**old, "run_id": old.get("run_id") or _id_from_checkpoints(workdir, old)}
    adopted = _adopted(workdir, run) if adopt else []
    if adopted:
        run = {**run, "adopted": [*run.get("adopted", []), *adopted]}
    return run, adopted


def _id_without_checkpoints(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Returns the old id, so that a backup of the checkpoints can be put back; a new id if the
    two descriptions are not compatible."""
    differences = identity.compare(old, new, 0)
    return (not differences.refused and old.get("run_id")) or identity.new_id()


def _id_from_checkpoints(workdir: Workdir, run: Mapping[str, Any]) -> str:
    """Returns the newest id among the run's checkpoints, as config.json has none, or a new one."""
    own = [meta for meta in _metas(workdir) if not identity.foreign_reason(meta, run)]
    return next(filter(None, (meta.get("run_id") for meta in own)), identity.new_id())


def _adopted(workdir: Workdir, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns an entry for every checkpoint in the workdir that belongs to another run."""
    checked = [(meta, identity.foreign_reason(meta, run)) for meta in _metas(workdir)]
    return [identity.adoption(meta, why) for meta, why in checked if why]


def _newest_own(workdir: Workdir, run: Mapping[str, Any]) -> int | None:
    """Returns the step of the newest complete checkpoint that may be the run's, or None."""
    for step in reversed(catalog.complete_steps(workdir.checkpoints)):
        try:
            if not identity.foreign_reason(catalog.read_meta(workdir.checkpoints, step), run):
                return step
        except catalog.DamagedError:  # its run is unknown
            return step
    return None


def _metas(workdir: Workdir) -> Iterator[dict[str, Any]]:
    """Yields the metadata of every readable checkpoint, newest first."""
    for step in reversed(catalog.all_steps(workdir.checkpoints)):
        with contextlib.suppress(catalog.DamagedError):
            yield catalog.read_meta(workdir.checkpoints, step)


def _first_meta(workdir: Workdir) -> dict[str, Any] | None:
    return next(filter(is_description, _metas(workdir)), None)


def update_config_json(
    workdir: Workdir, description: dict[str, Any], *, resuming_at: int | None
) -> list[str]:
    """Writes the description to config.json; for a run that resumes, first checks that it may.

    Args:
        resuming_at: the step of the checkpoint that the run resumes from, None for a new run.

    Returns:
        One line for each allowed difference: settings, package versions, devices.

    Raises:
        UserError: the run was started with another store, tokenizer or setting that decides the
            examples of a step or the meaning of the parameters, or a finished phase would change.
            One line with every such key, then a diff with one line per old and new value.
    """
    changed = []
    if resuming_at is not None:
        # If config.json is lost, the newest checkpoint records the run's description.
        old = read_description(workdir) if has_config_json(workdir) else _first_meta(workdir)
        if old is not None:
            identity.check(workdir, old, description, resuming_at)
            changed = identity.changes(old, description)
    write_config_json(workdir, description)
    return changed
