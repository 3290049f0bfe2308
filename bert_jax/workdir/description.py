"""What a run's folder belongs to: its configuration, its data, its tokenizer.

<workdir>/config.json     the run's id and configuration, the digests of what it was trained on, the
                          versions and devices it last ran with, checkpoints that it adopted
          tokenizer.json  the tokenizer of the store, as it will be exported
          checkpoints/ metrics.jsonl evaluations.jsonl tensorboard/

`config.json` is the mark of a workdir: it is written before anything else (but the lock), and a
folder that holds something and has no such mark is refused before anything in it changes.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from bert_jax.checkpoint import catalog
from bert_jax.config.schema import Config
from bert_jax.config.serialization import to_dict
from bert_jax.data_pipeline.storage.remote import (
    again,
    check_bucket,
    is_remote,
    is_special,
    is_transient,
    open_path,
    put,
    saying,
)
from bert_jax.data_pipeline.store.manifest import SPLITS, read_manifest, split_digest
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import StorageError, UserError
from bert_jax.runtime.versions import versions
from bert_jax.workdir import identity

# In a folder that is free: the lock of a run that died before it wrote config.json, what it had of
# that, and what a new file system holds.
_NO_CONTENT = re.compile(r"|\.lock|\.(config|tokenizer)\.json\.(\d+\.)?tmp|lost\+found")


def describe(
    config: Config,
    store: TokenStore,
    rows_per_epoch: Sequence[int],
    *,
    mesh: Mapping[str, int],
    device_kind: str,
) -> dict[str, Any]:
    """The run's description: goes into `config.json` and into every checkpoint.

    Args:
        rows_per_epoch: of each phase.
        mesh: devices along each axis; how many processes have them changes no number.
        device_kind: what they are.
    """
    return {
        "config": to_dict(config),
        "data": {
            "tokenizer": store.tokenizer_digest,
            "train": store.train.digest,
            "held_out": store.held_out.digest,
            "rows_per_epoch": list(rows_per_epoch),
        },
        "versions": versions(),
        "devices": {"kind": device_kind, "mesh": dict(mesh)},
    }


def digest(config: Config) -> str:
    """A short name of a configuration: equal where every value is."""
    text = json.dumps(to_dict(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read(workdir: epath.PathLike) -> dict[str, Any]:
    """The description of the run in a folder.

    Raises:
        UserError: the folder is not one of a run.
    """
    path = open_path(workdir) / "config.json"
    with saying(path):
        try:
            data = b"" if is_special(path) else again(path.read_bytes)
            description: dict[str, Any] = json.loads(data)
            if _is_description(description):
                return description
        except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
            pass
    raise UserError(
        f"{workdir}: not the folder of a pretraining run (no config.json of one in it); "
        "give the --workdir that was given to `bert-jax pretrain`"
    )


def _is_description(value: Any) -> bool:
    try:
        steps = [phase["steps"] for phase in value["config"]["phases"]]
        states = [one["state"] for one in value.get("adopted", [])]
        typed = all(isinstance(s, int) for s in steps) and all(isinstance(s, str) for s in states)
        return typed and isinstance(value["data"], dict)
    except (KeyError, TypeError, AttributeError):
        return False


def check_free(workdir: epath.PathLike) -> None:
    """Changes nothing in the folder.

    Raises:
        UserError: a run would write over files that are not of a run, or cannot read or name them.
    """
    _check_name(os.fspath(workdir))
    folder = open_path(workdir)
    with saying(folder, "cannot be the folder of a run"):
        if is_remote(folder):
            check_bucket(folder)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder}: a file; give a folder as --workdir")
        if (folder / "config.json").exists():
            _check_is_run(folder)
            return
        # A bucket may hold an object of the folder's own name.
        names = set(catalog.listed(folder)) - ({folder.name} if is_remote(folder) else set())
    held = sorted(name for name in names if not _NO_CONTENT.fullmatch(name))
    if held and _first_meta(folder) is None:
        more = ", …" if len(held) > 3 else ""
        raise UserError(
            f"{folder}: holds {', '.join(held[:3])}{more}, and no config.json of a pretraining "
            "run; nothing was changed. Give a new or empty folder as --workdir"
        )


def _check_name(workdir: str) -> None:
    try:
        usable = "\0" not in workdir and bool(workdir.encode())
    except UnicodeEncodeError:
        usable = False
    if not usable:
        shown = workdir.encode("ascii", "backslashreplace").decode()
        raise UserError(f"--workdir={shown}: not a name in UTF-8; give the folder another name")


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
    if not catalog.complete_steps(workdir) or not _has(workdir, "config.json"):
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
    marked = _has(workdir, "config.json")
    old = read(workdir) if marked else None if adopt else _first_meta(workdir)
    if old is None:
        run = {**description, "run_id": identity.new_id()}
        _write_description(workdir, run)
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
    return next(filter(_is_description, _metas(workdir)), None)


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
        old = read(workdir) if _has(workdir, "config.json") else _first_meta(workdir)
        if old is not None:
            identity.check(workdir, old, description, resuming_at)
            changed = identity.changes(old, description)
    _write_description(workdir, description)
    return changed


def check_own(workdir: epath.PathLike, meta: Mapping[str, Any]) -> None:
    """Raises UserError where a checkpoint in a run's folder is another run's."""
    folder = open_path(workdir)
    if not _has(folder, "config.json"):
        return
    why = identity.foreign(meta, read(folder))
    if why:
        raise UserError(
            f"{catalog.folder_of(workdir) / str(meta['step'])}: {why}; give the --step of another "
            "checkpoint. `bert-jax pretrain` sets it aside, or takes it with --adopt"
        )


def keep_tokenizer(workdir: epath.Path, store: TokenStore) -> None:
    """Copies the store's tokenizer into the workdir, byte for byte."""
    _write(workdir / "tokenizer.json", store.tokenizer_path.read_bytes())


def _has(workdir: epath.Path, name: str) -> bool:
    with saying(workdir):
        return again((workdir / name).exists)


def _write_description(workdir: epath.Path, description: Mapping[str, Any]) -> None:
    _write(workdir / "config.json", (json.dumps(description, indent=2) + "\n").encode())


def _write(path: epath.Path, data: bytes) -> None:
    """All of it or nothing.

    Raises:
        UserError: there is no such bucket, or no permission.
        StorageError: the disk or the bucket does not take it, now.
    """
    try:
        with saying(path, "cannot be written"):
            again(lambda: put(path, data))
    except UserError as error:
        if error.__cause__ and is_transient(error.__cause__):
            raise StorageError(str(error)) from error
        raise
