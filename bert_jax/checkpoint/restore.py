"""Which checkpoint a run goes on from: its newest of which every bit is what was saved.

One that is not is named with the reason and moved to `<workdir>/quarantine`, and an older one is
tried; those of other runs are moved there first. Every process reads for itself; a step is good
only if it is good for all of them.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import jax
import numpy as np
from etils import epath

from bert_jax.checkpoint import catalog, orbax_io
from bert_jax.checkpoint.catalog import (
    MARKER,
    DamagedError,
    all_steps,
    folder_of,
    list_quarantined,
    names_in,
    one_line,
    quarantine_of,
    read_meta,
    retry_read,
)
from bert_jax.checkpoint.fingerprint import described, named
from bert_jax.data_pipeline.storage.remote import (
    is_remote,
    move_folder,
    open_path,
    put,
)
from bert_jax.errors import StorageError, UserError
from bert_jax.runtime.console import console
from bert_jax.workdir import identity
from bert_jax.workdir.description import is_marked, read

# (name, text) -> the texts of all processes, by their number; waits for all of them.
Exchange = Callable[[str, str], list[str]]
# (kind, step, details) -> None: takes down an event of the run.
Tell = Callable[[str, int, dict[str, Any]], None]
# A checkpoint's record -> why it is not the run's, or an empty text; see `run_identity.foreign`.
Judge = Callable[[dict[str, Any]], str]
# The parts of a state -> uint32 [leaves, 2], see `fingerprint.program`.
Sums = Callable[[Any], jax.Array]


def alone(name: str, text: str) -> list[str]:
    """The exchange of a single process."""
    del name
    return [text]


def parts(state: Mapping[str, Any]) -> dict[str, Any]:
    """What of a state is saved as arrays: everything but the step, which is a number in `meta`."""
    return {name: tree for name, tree in state.items() if name != "step"}


def find(workdir: epath.PathLike, exchange: Exchange = alone) -> tuple[list[int], list[str]]:
    """Steps in the folder of checkpoints, and names in quarantine: what process 0 sees.

    Process 0 first removes what an earlier process left half written.

    Raises:
        StorageError: the folder of checkpoints is a file, or cannot be read.
    """
    said = json.dumps(_look(workdir)) if jax.process_index() == 0 else ""
    steps, quarantined = json.loads(exchange("checkpoints", said)[0])
    return steps, quarantined


def _look(workdir: epath.PathLike) -> tuple[list[int], list[str]]:
    folder = folder_of(workdir)
    try:
        orbax_io.tidy(folder)
    except Exception as error:  # it does no harm
        console.print(f"warning: {folder}: cannot be tidied ({one_line(error)})", markup=False)
    if not is_remote(folder) and folder.is_file():
        raise StorageError(
            f"{folder}: a file where the folder of checkpoints should be; put the folder back, or "
            "remove the file to begin anew"
        )
    return all_steps(workdir), [one.folder for one in list_quarantined(workdir)]


def set_aside(
    workdir: epath.PathLike,
    steps: list[int],
    foreign: Judge,
    *,
    exchange: Exchange,
    tell: Tell,
    strict: bool,
) -> list[int]:
    """Moves the checkpoints of other runs to quarantine; the steps that are left.

    Raises:
        UserError: `strict`, or no other is left; nothing was moved.
    """
    seen: dict[int, str] = {}
    for step in steps:
        with suppress(DamagedError):  # whosever it is, it will not be used
            seen[step] = foreign(read_meta(workdir, step))
    verdict = {step: why for step, why in seen.items() if why}
    theirs: dict[int, str] = {}
    for said in exchange("restore/runs", json.dumps(verdict) if verdict else ""):
        theirs |= {int(step): why for step, why in json.loads(said or "{}").items()}
    left = [step for step in steps if step not in theirs]
    if not theirs:
        return left
    newest = max(theirs)
    named = f"{folder_of(workdir) / str(newest)}: {theirs[newest]}"
    if strict:
        raise UserError(
            f"{named}; nothing was moved. Without --strict_restore it is moved to quarantine, "
            "with --adopt it is taken into this run"
        )
    if not left:
        raise UserError(
            f"{named}; no checkpoint of this run is left, and nothing was moved. Put the run's "
            "own back, go on from this one with --adopt, or give a new --workdir"
        )
    for step in sorted(theirs, reverse=True) if jax.process_index() == 0 else ():
        _quarantine(workdir, step, theirs[step], tell)
    return left


def restore_newest(
    workdir: epath.PathLike,
    steps: list[int],
    quarantined: list[str],
    abstract: Mapping[str, Any],
    sums: Sums,
    *,
    exchange: Exchange,
    tell: Tell,
    strict: bool,
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The newest good state and its `meta`; None where there never was a checkpoint.

    Args:
        steps, quarantined: what `find` found.
        abstract: the state as ShapeDtypeStructs with shardings.
        strict: stop at the first that is not good, and move nothing.

    Raises:
        StorageError: none of those that are there is good, or the storage cannot be read.
        UserError: a good one holds arrays of other shapes, so of another model.
    """
    newest = ""
    for step in sorted(steps, reverse=True):
        found = _try(workdir, step, abstract, sums, exchange)
        if not isinstance(found, DamagedError):
            return found
        if strict:
            raise StorageError(
                f"{found}; nothing was changed. Without --strict_restore it is moved to quarantine "
                "and the newest good one is used"
            )
        newest = newest or f" (the newest, step {step}: {found.reason})"
        if jax.process_index() == 0:
            _quarantine(workdir, step, found.reason, tell, "damaged: ")
    if steps or quarantined:
        raise StorageError(
            f"{workdir}: no good checkpoint is left{newest}; {quarantine_of(workdir)} holds what "
            "was there, and why. Put back a copy of one if you have it; to begin anew, remove that "
            "folder or give a new --workdir"
        )
    return None


def _try(
    workdir: epath.PathLike,
    step: int,
    abstract: Mapping[str, Any],
    sums: Sums,
    exchange: Exchange,
) -> tuple[dict[str, Any], dict[str, Any]] | DamagedError:
    """The state of a step and its `meta`, or what is wrong with it for the first who complains."""
    wanted, folder = parts(abstract), folder_of(workdir) / str(step)
    meta: dict[str, Any] = {}
    items: dict[str, Any] = {}
    verdict = ""
    try:
        meta = read_meta(workdir, step)
        _check_shapes(workdir, step, meta["shapes"], described(wanted))
        items = _read(folder, wanted)
    except DamagedError as error:
        verdict = error.reason
    for said in exchange(f"restore/{step}/read", verdict):
        if said:  # before any array is placed: what follows all processes do together
            return DamagedError(folder, said)
    placed = jax.tree.map(_place, items, wanted)
    verdict = _changed(named(placed, sums(placed)), meta["fingerprints"])
    for said in exchange(f"restore/{step}/verify", verdict):
        if said:
            return DamagedError(folder, said)
    return {"step": _place(np.array(step, np.int32), abstract["step"]), **placed}, meta


def read_verified(
    workdir: epath.PathLike, meta: Mapping[str, Any], wanted: Mapping[str, Any], sums: Sums
) -> dict[str, Any]:
    """Some parts of the state of a step, checked and placed as `wanted` says; moves nothing.

    Raises:
        DamagedError: they are not what was saved.
        UserError: they hold arrays of other shapes than `wanted`.
    """
    folder = folder_of(workdir) / str(meta["step"])
    _check_shapes(workdir, meta["step"], _of(meta["shapes"], wanted), described(wanted))
    placed = jax.tree.map(_place, _read(folder, wanted), dict(wanted))
    changed = _changed(named(placed, sums(placed)), _of(meta["fingerprints"], wanted))
    if changed:
        raise DamagedError(folder, changed)
    return placed


def _read(folder: epath.Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    # Orbax and TensorStore have many errors, and promise none.
    return retry_read(folder, lambda: orbax_io.read(folder, wanted), "its arrays cannot be read")


def _check_shapes(
    workdir: epath.PathLike, step: int, there: Mapping[str, str], here: Mapping[str, str]
) -> None:
    for path in {**there, **here}:
        if there.get(path) != here.get(path):
            raise UserError(
                f"{workdir}: in its checkpoint of step {step} {path} is "
                f"{there.get(path, 'not there')}, the configuration asks for "
                f"{here.get(path, 'none')}; put the old values back or give a new --workdir"
            )


def _of(said: Mapping[str, str], wanted: Mapping[str, Any]) -> dict[str, str]:
    """What is said of these parts of a state."""
    return {path: text for path, text in said.items() if path.partition("/")[0] in wanted}


def _changed(now: Mapping[str, str], then: Mapping[str, str]) -> str:
    changed = [path for path in {**then, **now} if now.get(path) != then.get(path)]
    if not changed:
        return ""
    others = ", …" if len(changed) > 1 else ""
    return (
        f"{len(changed)} of {len(then)} arrays not bit for bit what was saved: {changed[0]}{others}"
    )


def _place(array: np.ndarray, like: Any) -> jax.Array:
    """A whole array on the host -> one laid out as its like; every process places its own part."""
    return jax.make_array_from_callback(array.shape, like.sharding, lambda index: array[index])


def _quarantine(
    workdir: epath.PathLike, step: int, reason: str, tell: Tell, kind: str = ""
) -> None:
    """Moves a checkpoint out of the way, the reason first, and says so."""
    checkpoint, folder, number = folder_of(workdir) / str(step), quarantine_of(workdir), 1
    there, to = names_in(folder), folder / str(step)
    while to.name in there:
        number += 1
        to = folder / f"{step}-{number}"
    try:
        put(folder / f"{to.name}.txt", f"{reason}\n".encode())
        move_folder(checkpoint, to, first=MARKER)
    except Exception as error:
        raise StorageError(
            f"{checkpoint}: {kind}{reason}; it cannot be moved to {folder} ({one_line(error)}); "
            "move or remove it"
        ) from error
    console.print(f"warning: {checkpoint}: {kind}{reason}; moved to {to}", markup=False)
    tell("quarantined", step, {"reason": reason, "folder": str(to)})


def check_own(workdir: epath.PathLike, meta: Mapping[str, Any]) -> None:
    """Raises UserError where a checkpoint in a run's folder is another run's."""
    folder = open_path(workdir)
    if not is_marked(folder):
        return
    why = identity.foreign(meta, read(folder))
    if why:
        raise UserError(
            f"{catalog.folder_of(workdir) / str(meta['step'])}: {why}; give the --step of another "
            "checkpoint. `bert-jax pretrain` sets it aside, or takes it with --adopt"
        )
