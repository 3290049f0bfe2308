"""Checkpoints of a run: saved while training goes on, verified when they are used.

    <workdir>/checkpoints/<step>/params, opt, …, meta

Each part of the state is an item of its own, so that export and use read only what they need.
The data state is the step itself. `meta` is JSON: format version, step, phase of the last update,
the held-out figures if the step was evaluated, fingerprint and shape of every array, and the run's
description. The state at the end of a phase is saved as that phase left it; what the next phase
resets, it resets when it starts.

Process 0 alone writes; `catalog.py` says what lies on disk, `orbax_io.py` writes and reads one,
`restore.py` decides which is good.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
from etils import epath
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.checkpoint import fingerprint, orbax_io, restore
from bert_jax.checkpoint.catalog import (
    FORMAT_VERSION,
    CheckpointInfo,
    DamagedError,
    best_by_phase,
    complete_steps,
    folder_of,
    list_checkpoints,
    one_line,
    read_meta,
    reasons,
    with_digest,
)
from bert_jax.checkpoint.restore import Exchange, Judge, Tell, alone, check_own, parts
from bert_jax.config.schema import CheckpointConfig, ComputeConfig, DataConfig, ModelConfig
from bert_jax.config.serialization import from_dict
from bert_jax.errors import StorageError, UserError
from bert_jax.objectives.pretraining_model import init_params
from bert_jax.objectives.registry import chosen
from bert_jax.runtime.console import console


class RunCheckpoints:
    """Saves in the background, keeps what the configuration asks for, restores the newest good one.

    Every process of a run has one and calls the same methods in the same order.
    """

    def __init__(
        self,
        workdir: epath.PathLike,
        config: CheckpointConfig,
        phase_ends: Sequence[int] = (),
        *,
        exchange: Exchange = alone,
        tell: Tell = lambda kind, step, details: None,
    ):
        """Removes what an earlier process left half written.

        Args:
            phase_ends: updates done at the end of each phase; these checkpoints stay.
            exchange: how the processes of a run tell each other what they found.
            tell: takes down "quarantined" and "save_failed"; may be called by another thread.

        Raises:
            StorageError: the folder cannot be read, or is a file.
        """
        self._workdir, self._config, self._phase_ends = workdir, config, phase_ends
        self._folder, self._exchange, self._tell = folder_of(workdir), exchange, tell
        self._writes = jax.process_index() == 0
        self._steps, self._quarantined = restore.find(workdir, exchange)
        # Only what process 0 knows to be complete.
        known = list_checkpoints(workdir) if self._writes else []
        self._saved = {one.step: one for one in known}
        self._thread: threading.Thread | None = None
        self._failure: StorageError | None = None
        self._sums: restore.Sums | None = None
        self._whole: dict[Any, Callable[[jax.Array], jax.Array]] = {}

    def latest_step(self) -> int | None:
        """The newest step there is, good or not, or being written; None if there is none."""
        return max(self._steps, default=None)

    def prepare(self, abstract: dict[str, Any]) -> None:
        """Compiles what saving and restoring need, so that neither waits for a compiler later.

        abstract: the state as ShapeDtypeStructs with shardings.
        """
        tree = parts(abstract)
        self._sums = fingerprint.program(fingerprint.mesh_of(tree)).lower(tree).compile()
        for like in jax.tree.leaves(tree):
            if _is_spread(like.sharding) and _layout(like) not in self._whole:
                self._whole[_layout(like)] = _make_whole(like).lower(like).compile()

    def save(
        self,
        state: dict[str, Any],
        meta: Mapping[str, Any],
        *,
        phase: int = 0,
        evaluation: Mapping[str, float] | None = None,
    ) -> None:
        """Copies the state and writes it in the background; nothing to do if the step is there.

        Waits until the one before is written.

        Args:
            meta: the run's description.
            phase: of the last update.
            evaluation: held-out figures of this state, if it was evaluated.

        Raises:
            StorageError: the one before could not be written.
        """
        step = int(state["step"])
        if step == self.latest_step():
            return
        self.wait()
        items = parts(state)
        sums = self._sums or fingerprint.program(fingerprint.mesh_of(items))
        about = {
            "format_version": FORMAT_VERSION,
            "step": step,
            "phase": phase,
            "evaluation": dict(evaluation) if evaluation else None,
            "fingerprints": fingerprint.named(items, sums(items)),
            "shapes": fingerprint.described(items),
        }
        copies = jax.tree.map(self._copy, items)
        self._steps.append(step)
        if self._writes:
            saved = CheckpointInfo(step, evaluation["loss"] if evaluation else None)
            arguments = (saved, copies, with_digest({**meta, **about}))
            self._thread = threading.Thread(target=self._write, args=arguments, name="checkpoint")
            self._thread.start()

    def note_evaluation(self, step: int, evaluation: Mapping[str, float]) -> None:
        """Adds held-out figures to the checkpoint of a step that was saved without them.

        Where the storage refuses, the checkpoint stays as it is.
        """
        if not self._writes:
            return
        try:
            meta = {**read_meta(self._workdir, step), "evaluation": dict(evaluation)}
            orbax_io.replace_meta(self._folder / str(step), with_digest(meta))
        except Exception as error:  # whatever the storage raises
            said = f"warning: step {step} stays without its evaluation ({one_line(error)})"
            console.print(said, markup=False)
            return
        self._saved[step] = CheckpointInfo(step, evaluation["loss"])

    def restore_newest(
        self, abstract: dict[str, Any], *, strict: bool = False, foreign: Judge = lambda meta: ""
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The newest state that is what was saved, bit for bit, and its `meta`.

        Those that are not, and those of other runs, are moved to quarantine; see
        `restoring.restore_newest`.

        Args:
            abstract: the state as ShapeDtypeStructs with shardings; any mesh will do.
            strict: stop at the first that is not good, and move nothing.
            foreign: says of a checkpoint's record why it is not the run's; an empty text if it is.

        Returns:
            None if there never was a checkpoint.

        Raises:
            StorageError: none is good, or the storage cannot be read.
            UserError: it holds arrays of other shapes, or all are of other runs.
        """
        tree = parts(abstract)
        self._steps = restore.set_aside(
            self._workdir,
            self._steps,
            foreign,
            exchange=self._exchange,
            tell=self._tell,
            strict=strict,
        )
        found = restore.restore_newest(
            self._workdir,
            self._steps,
            self._quarantined,
            abstract,
            self._sums or fingerprint.program(fingerprint.mesh_of(tree)),
            exchange=self._exchange,
            tell=self._tell,
            strict=strict,
        )
        if found is not None:
            step = found[1]["step"]
            self._steps = [one for one in self._steps if one <= step]
            self._saved = {one: what for one, what in self._saved.items() if one in self._steps}
        return found

    def check(self) -> None:
        """Raises StorageError if a checkpoint could not be written; does not wait."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def wait(self) -> None:
        """Until everything is written; raises StorageError if it could not be."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def close(self) -> None:
        """As `wait`."""
        self.wait()

    def _copy(self, x: jax.Array) -> np.ndarray | None:
        """A whole array on the host of the process that writes, None on the others.

        What is spread over processes is first made whole by all of them, one array at a time.
        """
        if _is_spread(x.sharding):
            if _layout(x) not in self._whole:
                self._whole[_layout(x)] = _make_whole(x)
            x = self._whole[_layout(x)](x)
        if not self._writes:
            return None
        whole, seen = np.empty(x.shape, x.dtype), set()
        for shard in x.addressable_shards:
            if str(shard.index) not in seen:
                seen.add(str(shard.index))
                whole[shard.index] = np.asarray(shard.data)
        return whole

    def _write(
        self, saved: CheckpointInfo, items: Mapping[str, Any], meta: Mapping[str, Any]
    ) -> None:
        """In a thread: writes, again and again if need be, then removes what need not be kept."""
        folder, attempts = self._folder / str(saved.step), self._config.write_attempts
        for attempt in range(1, attempts + 1):
            try:
                orbax_io.write(folder, items, meta)
                break
            except Exception as error:  # whatever the storage raises
                reason = one_line(error)
            orbax_io.discard(folder)
            if attempt == attempts:
                self._give_up(folder, saved.step, reason)
                return
            pause = 2 ** (attempt - 1)
            console.print(
                f"warning: {folder}: cannot be written ({reason}); attempt {attempt} of "
                f"{attempts}, the next in {pause} s",
                markup=False,
            )
            _sleep(pause)
        self._saved[saved.step] = saved
        self._prune()

    def _give_up(self, folder: epath.Path, step: int, reason: str) -> None:
        kept = max(self._saved, default=None)
        lost = "no step was saved before" if kept is None else f"nothing is lost up to step {kept}"
        attempts = self._config.write_attempts
        self._failure = StorageError(
            f"{folder}: cannot be written after {attempts} attempts ({reason}); {lost}; the same "
            "command goes on from there once the storage can be written to"
        )
        self._tell("save_failed", step, {"reason": reason})

    def _prune(self) -> None:
        why = reasons(list(self._saved.values()), self._config, self._phase_ends)
        for step in [step for step, said in why.items() if not said]:
            del self._saved[step]
            folder = self._folder / str(step)
            try:
                orbax_io.remove(folder)
            except Exception as error:  # one too many does no harm
                said = f"warning: {folder}: cannot be removed ({one_line(error)})"
                console.print(said, markup=False)


_sleep = time.sleep  # between attempts


def _is_spread(layout: jax.sharding.Sharding) -> bool:
    """Whether no process holds all of an array that is laid out so."""
    return not (layout.is_fully_addressable or layout.is_fully_replicated)


def _layout(x: Any) -> tuple:
    return x.shape, x.dtype, x.sharding


def _make_whole(like: Any) -> Any:
    """A jitted function that gives every device all of an array laid out like this one."""
    return jax.jit(lambda x: x, out_shardings=NamedSharding(like.sharding.mesh, P()))


def find_step(workdir: epath.PathLike, step: int | Literal["best"] | None = None) -> int:
    """The step of a complete checkpoint: that one, the newest (None), or the best.

    The best has the lowest held-out loss of the last phase of which a checkpoint was evaluated.

    Raises:
        UserError: the workdir holds no such checkpoint.
    """
    steps = complete_steps(workdir)
    if not steps:
        raise UserError(f"{workdir}: no checkpoints there; give the --workdir of a pretraining run")
    if step is None:
        return steps[-1]
    if step == "best":
        phases = read_meta(workdir, steps[-1])["config"]["phases"]
        ends = [sum(p["steps"] for p in phases[: i + 1]) for i in range(len(phases))]
        best = best_by_phase(list_checkpoints(workdir), ends)
        if not best:
            raise UserError(
                f"{workdir}: no checkpoint was evaluated when it was saved; give a step "
                f"({_names(steps)}), or evaluate them all with `bert-jax evaluate --all`"
            )
        return best[max(best)]
    if step not in steps:
        raise UserError(f"{workdir}: no checkpoint of step {step}; complete steps: {_names(steps)}")
    return step


def _names(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps))


def load_params(
    workdir: epath.PathLike, step: int | Literal["best"] | None = None
) -> tuple[dict, dict[str, Any]]:
    """Parameters of a step (see `find_step`) as arrays on one device, and its `meta`.

    Raises:
        UserError: the workdir holds no such checkpoint, or it is another run's.
        StorageError: they are not bit for bit what was saved, or are in another format.
    """
    step = find_step(workdir, step)
    try:
        meta = read_meta(workdir, step)
        check_own(workdir, meta)
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        wanted = {"params": _params_of(meta["config"], here)}
        found = restore.read_verified(workdir, meta, wanted, fingerprint.program(None))
        return found["params"], meta
    except DamagedError as error:
        others = [one for one in complete_steps(workdir) if one != step]
        instead = f"give another --step ({_names(others)})" if others else "there is no other"
        raise StorageError(f"{error}; {instead}") from error


def _params_of(config: Mapping[str, Any], layout: jax.sharding.Sharding) -> Any:
    """The parameters of a run, laid out so, as ShapeDtypeStructs."""
    model = from_dict(config["model"], ModelConfig, "config.model")
    data = from_dict(config["data"], DataConfig, "config.data")
    objectives = chosen(data, config.get("objectives", ""))
    shapes = jax.eval_shape(
        lambda: init_params(model, ComputeConfig.plain(), objectives, jax.random.key(0))
    )
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout), shapes)
