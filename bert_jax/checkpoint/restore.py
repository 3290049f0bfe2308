"""Restores the newest checkpoint of a run that is bit for bit what was saved.

A damaged one is reported with the reason and moved to quarantine, and an older one is
tried; checkpoints of other runs are moved there first. Every process reads on its own; a step is
valid only if it is valid for all processes.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import jax
import numpy as np
from etils import epath

from bert_jax.checkpoint import orbax_io
from bert_jax.checkpoint.catalog import (
    MARKER,
    DamagedError,
    ForeignReason,
    all_steps,
    list_quarantined,
    names_in,
    one_line,
    read_meta,
    retry_read,
)
from bert_jax.checkpoint.fingerprint import described, named
from bert_jax.distributed.peers import ProcessGroup
from bert_jax.errors import StorageError, UserError
from bert_jax.runtime.log import logger
from bert_jax.storage.remote import is_remote, move_folder, put
from bert_jax.workdir.layout import Workdir

# (kind, step, details) -> None: writes an event to the run's metrics.
RecordEvent = Callable[[str, int, dict[str, Any]], None]
# Parts of a state -> uint32 [leaves, 2], see `fingerprint.program`.
Sums = Callable[[Any], jax.Array]


def parts(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of a state saved as arrays: all but the step, a number in `meta`."""
    return {name: tree for name, tree in state.items() if name != "step"}


def find(workdir: Workdir, peers: ProcessGroup) -> tuple[list[int], list[str]]:
    """Returns process 0's view: steps in the checkpoint folder, and names in quarantine.

    Process 0 first removes partial checkpoints of an earlier process.

    Raises:
        StorageError: the checkpoint folder is a file, or cannot be read.
    """
    listing = json.dumps(_list(workdir)) if peers.is_first else ""
    steps, quarantined = json.loads(peers.all_gather_text("restore/list", listing)[0])
    return steps, quarantined


def _list(workdir: Workdir) -> tuple[list[int], list[str]]:
    folder = workdir.checkpoints
    try:
        orbax_io.tidy(folder)
    except Exception as error:  # partial checkpoints do no harm
        logger.warning(f"{folder}: partial checkpoints cannot be removed ({one_line(error)})")
    if not is_remote(folder) and folder.is_file():
        raise StorageError(
            f"{folder}: a file, but should be the folder of checkpoints; put the folder back, or "
            "remove the file to start from scratch"
        )
    return all_steps(folder), [q.folder for q in list_quarantined(workdir.quarantine)]


@dataclasses.dataclass(frozen=True)
class Restorer:
    """Restores a checkpoint in every process of a run; process 0 moves others to quarantine."""

    workdir: Workdir
    peers: ProcessGroup
    record_event: RecordEvent
    strict: bool  # fail at the first invalid checkpoint, and move nothing

    def set_aside(self, steps: list[int], foreign_reason: ForeignReason) -> list[int]:
        """Moves the checkpoints of other runs to quarantine; returns the remaining steps.

        Raises:
            UserError: `strict`, or none would remain; nothing was moved.
        """
        seen: dict[int, str] = {}
        for step in steps:
            with suppress(DamagedError):  # its run is unknown, but it will not be used
                seen[step] = foreign_reason(read_meta(self.workdir.checkpoints, step))
        local = {step: why for step, why in seen.items() if why}
        foreign: dict[int, str] = {}
        for text in self.peers.all_gather_text("restore/runs", json.dumps(local) if local else ""):
            foreign |= {int(step): why for step, why in json.loads(text or "{}").items()}
        left = [step for step in steps if step not in foreign]
        if not foreign:
            return left
        newest = max(foreign)
        named = f"{self.workdir.checkpoints / str(newest)}: {foreign[newest]}"
        if self.strict:
            raise UserError(
                f"{named}; nothing was moved. Without --strict_restore it is moved to quarantine, "
                "with --adopt this run adopts it"
            )
        if not left:
            raise UserError(
                f"{named}; no checkpoint of this run is left, and nothing was moved. Put the run's "
                "own back, resume from this one with --adopt, or give a new --workdir"
            )
        for step in sorted(foreign, reverse=True) if self.peers.is_first else ():
            self._quarantine(step, foreign[step])
        return left

    def restore_newest(
        self, steps: list[int], quarantined: list[str], abstract: Mapping[str, Any], sums: Sums
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Restores the newest valid state and its `meta`; None if no checkpoint was ever saved.

        Args:
            steps, quarantined: returned by `find`.
            abstract: the state as ShapeDtypeStructs with shardings.

        Raises:
            StorageError: no checkpoint is valid, or the storage cannot be read.
            UserError: a valid one holds arrays of other shapes, so of another model.
        """
        newest = ""
        for step in sorted(steps, reverse=True):
            restored = self._try(step, abstract, sums)
            if not isinstance(restored, DamagedError):
                return restored
            if self.strict:
                raise StorageError(
                    f"{restored}; nothing was changed. Without --strict_restore it is moved to "
                    "quarantine and the newest valid one is used"
                )
            newest = newest or f" (the newest, step {step}: {restored.reason})"
            if self.peers.is_first:
                self._quarantine(step, restored.reason, "damaged: ")
        if steps or quarantined:
            raise StorageError(
                f"{self.workdir}: no valid checkpoint is left{newest}; {self.workdir.quarantine} "
                "holds the rejected ones and the reasons. Put back a copy of one if you have it; "
                "to start from scratch, remove that folder or give a new --workdir"
            )
        return None

    def _try(
        self, step: int, abstract: Mapping[str, Any], sums: Sums
    ) -> tuple[dict[str, Any], dict[str, Any]] | DamagedError:
        """Returns the state of a step and its `meta`; if damaged, the first process's error."""
        wanted, folder = parts(abstract), self.workdir.checkpoints / str(step)
        meta: dict[str, Any] = {}
        items: dict[str, Any] = {}
        verdict = ""
        try:
            meta = read_meta(self.workdir.checkpoints, step)
            _check_shapes(self.workdir, step, meta["shapes"], described(wanted))
            items = _read(folder, wanted)
        except DamagedError as error:
            verdict = error.reason
        for problem in self.peers.all_gather_text(f"restore/{step}/read", verdict):
            if problem:  # before any array is placed: all processes take part in the following
                return DamagedError(folder, problem)
        placed = jax.tree.map(_place, items, wanted)
        verdict = _changed(named(placed, sums(placed)), meta["fingerprints"])
        for problem in self.peers.all_gather_text(f"restore/{step}/verify", verdict):
            if problem:
                return DamagedError(folder, problem)
        return {"step": _place(np.array(step, np.int32), abstract["step"]), **placed}, meta

    def _quarantine(self, step: int, reason: str, kind: str = "") -> None:
        """Stores the reason in quarantine, moves the checkpoint there, and prints a warning."""
        checkpoint, folder = self.workdir.checkpoints / str(step), self.workdir.quarantine
        number, taken, to = 1, names_in(folder), folder / str(step)
        while to.name in taken:
            number += 1
            to = folder / f"{step}-{number}"
        try:
            put(folder / f"{to.name}.txt", f"{reason}\n".encode())
            move_folder(checkpoint, to, first=MARKER)
        except Exception as error:
            raise StorageError(
                f"{checkpoint}: {kind}{reason}; it cannot be moved to {folder} "
                f"({one_line(error)}); move or remove it"
            ) from error
        logger.warning(f"{checkpoint}: {kind}{reason}; moved to {to}")
        self.record_event("quarantined", step, {"reason": reason, "folder": str(to)})


def read_verified(
    workdir: Workdir, meta: Mapping[str, Any], wanted: Mapping[str, Any], sums: Sums
) -> dict[str, Any]:
    """Reads and verifies parts of a step's state, sharded as `wanted`; moves nothing.

    Raises:
        DamagedError: they differ from what was saved.
        UserError: they hold arrays of other shapes than `wanted`.
    """
    folder = workdir.checkpoints / str(meta["step"])
    _check_shapes(workdir, meta["step"], _select(meta["shapes"], wanted), described(wanted))
    placed = jax.tree.map(_place, _read(folder, wanted), dict(wanted))
    changed = _changed(named(placed, sums(placed)), _select(meta["fingerprints"], wanted))
    if changed:
        raise DamagedError(folder, changed)
    return placed


def _read(folder: epath.Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    # Orbax and TensorStore raise many errors, none of them documented.
    return retry_read(
        folder, lambda: orbax_io.read_arrays(folder, wanted), "its arrays cannot be read"
    )


def _check_shapes(
    workdir: Workdir, step: int, saved: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    for path in {**saved, **expected}:
        if saved.get(path) != expected.get(path):
            raise UserError(
                f"{workdir}: in its checkpoint of step {step} {path} is "
                f"{saved.get(path, 'missing')}, the configuration expects "
                f"{expected.get(path, 'none')}; put the old values back or give a new --workdir"
            )


def _select(by_path: Mapping[str, str], wanted: Mapping[str, Any]) -> dict[str, str]:
    """Returns the entries of the wanted parts of a state."""
    return {path: text for path, text in by_path.items() if path.partition("/")[0] in wanted}


def _changed(now: Mapping[str, str], then: Mapping[str, str]) -> str:
    changed = [path for path in {**then, **now} if now.get(path) != then.get(path)]
    if not changed:
        return ""
    others = ", …" if len(changed) > 1 else ""
    return f"{len(changed)} of {len(then)} arrays differ from what was saved: {changed[0]}{others}"


def _place(array: np.ndarray, like: Any) -> jax.Array:
    """Shards an array on the host like `like`; every process places its own shards."""
    return jax.make_array_from_callback(array.shape, like.sharding, lambda index: array[index])
