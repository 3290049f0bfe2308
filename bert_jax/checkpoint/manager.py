"""Checkpoint manager of a run: saves asynchronously, verifies on restore.

    Workdir.checkpoints/STEP/params, opt, …, meta

Each part of the state is a separate item, so that export and inference read only what they need.
The data state is the step itself. `meta` is JSON: format version, step, phase of the last update,
held-out metrics if the step was evaluated, fingerprint and shape of every array, and the run's
description. The state at the end of a phase is saved unchanged; the next phase resets what it has
to when it starts.

Only process 0 writes. `catalog.py` lists checkpoints, `orbax_io.py` writes and reads one,
`restore.py` selects the one to restore.
"""

# Over 300 lines: saving, restoring and reading without a run share one form of a checkpoint.

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import jax
import numpy as np
from etils import epath

from bert_jax.checkpoint import fingerprint, orbax_io, restore
from bert_jax.checkpoint.catalog import (
    FORMAT_VERSION,
    CheckpointInfo,
    DamagedError,
    ForeignReason,
    complete_steps,
    list_checkpoints,
    one_line,
    read_meta,
    with_digest,
)
from bert_jax.checkpoint.restore import RecordEvent, Restorer, parts
from bert_jax.checkpoint.retention import best_by_phase, reasons_to_keep
from bert_jax.config.optimizer_settings import Weights
from bert_jax.config.recorded import config_of
from bert_jax.config.schema import CheckpointConfig, ComputeConfig
from bert_jax.distributed.peers import ProcessGroup, single_process_group
from bert_jax.errors import StorageError, UserError
from bert_jax.objectives.disentangled_embeddings import summed
from bert_jax.objectives.known_objectives import learned_by
from bert_jax.objectives.pretraining_model import init_params, trains_apart
from bert_jax.parallel.partition import replicate_like
from bert_jax.runtime.activity import ActivityClock
from bert_jax.runtime.log import logger
from bert_jax.storage.retry import RetryPolicy, retry
from bert_jax.workdir import description, identity
from bert_jax.workdir.layout import Workdir, split_step


class RunCheckpoints:
    """Saves in the background, prunes as configured, restores the newest valid checkpoint.

    Every process of a run has an instance and calls the same methods in the same order.
    """

    def __init__(
        self,
        workdir: Workdir,
        config: CheckpointConfig,
        phase_ends: Sequence[int] = (),
        at_words: Mapping[int, Sequence[int]] = MappingProxyType({}),
        *,
        peers: ProcessGroup | None = None,
        record_event: RecordEvent = lambda kind, step, details: None,
        flush_records: Callable[[], object] = lambda: None,
    ):
        """Removes partial checkpoints of an earlier process.

        Args:
            phase_ends: the last step of each phase; these checkpoints are kept.
            at_words: step -> words, of those that are kept by `config.checkpoint.keep_at_words`.
            peers: the processes of the run; by default this one alone.
            record_event: records "quarantined" and "save_failed"; may be called by another thread.
            flush_records: called by a thread before a checkpoint is written. A run that resumes
                from it does not repeat its steps, so their records must be as safe.

        Raises:
            StorageError: the folder cannot be read, or is a file.
        """
        self._workdir, self._config, self._phase_ends = workdir, config, phase_ends
        self._at_words = at_words
        self._folder = workdir.checkpoints
        self._peers = peers or single_process_group(ActivityClock())
        self._record_event, self._flush_records = record_event, flush_records
        self._steps, self._quarantined = restore.find(workdir, self._peers)
        # Complete checkpoints; only process 0 needs them.
        known = list_checkpoints(self._folder) if self._peers.is_first else []
        self._saved = {info.step: info for info in known}
        self._thread: threading.Thread | None = None
        self._failure: StorageError | None = None
        self._sums: restore.Sums | None = None
        self._gather: dict[Any, Callable[[jax.Array], jax.Array]] = {}

    def prepare(self, abstract: dict[str, Any]) -> None:
        """Compiles the programs for saving and restoring ahead of time.

        abstract: the state as ShapeDtypeStructs with shardings.
        """
        tree = parts(abstract)
        self._sums = fingerprint.program(fingerprint.mesh_of(tree)).lower(tree).compile()
        for like in jax.tree.leaves(tree):
            if _is_split(like.sharding) and _layout(like) not in self._gather:
                self._gather[_layout(like)] = replicate_like(like).lower(like).compile()

    def save(
        self,
        state: dict[str, Any],
        meta: Mapping[str, Any],
        *,
        phase: int = 0,
        evaluation: Mapping[str, float] | None = None,
    ) -> None:
        """Copies the state and writes it in the background; does nothing if the step is saved.

        First waits until the previous checkpoint is written.

        Args:
            meta: the run's description.
            phase: of the last update.
            evaluation: held-out metrics of this state, if it was evaluated.

        Raises:
            StorageError: the previous checkpoint could not be written.
        """
        step = int(state["step"])
        if step == max(self._steps, default=None):  # valid or not, or being written
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
        if self._peers.is_first:
            written = with_digest({**meta, **about})
            arguments = (CheckpointInfo.of(written), copies, written)
            self._thread = threading.Thread(target=self._write, args=arguments, name="checkpoint")
            self._thread.start()

    def note_evaluation(self, step: int, evaluation: Mapping[str, float]) -> None:
        """Adds held-out metrics to a checkpoint that was saved without them.

        If writing them fails, prints a warning and leaves the checkpoint unchanged.
        """
        if not self._peers.is_first:
            return
        try:
            meta = {**read_meta(self._folder, step), "evaluation": dict(evaluation)}
            orbax_io.replace_meta(self._folder / str(step), with_digest(meta))
        except Exception as error:  # whatever the storage raises
            logger.warning(f"step {step}: its evaluation cannot be stored ({one_line(error)})")
            return
        self._saved[step] = CheckpointInfo.of(meta)

    def restore_newest(
        self,
        abstract: dict[str, Any],
        *,
        strict: bool = False,
        foreign_reason: ForeignReason = lambda meta: "",
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Restores the newest state that is bit for bit what was saved, and its `meta`.

        Moves damaged checkpoints and those of other runs to quarantine. Returns None if the run
        never saved a checkpoint.

        Args:
            abstract: the state as ShapeDtypeStructs with shardings, on any mesh.
            strict: fail at the first invalid checkpoint, and move nothing.

        Raises:
            StorageError: no checkpoint is valid, or the storage cannot be read.
            UserError: it holds arrays of other shapes, or all checkpoints are of other runs.
        """
        sums = self._sums or fingerprint.program(fingerprint.mesh_of(parts(abstract)))
        restorer = Restorer(self._workdir, self._peers, self._record_event, strict)
        self._steps = restorer.set_aside(self._steps, foreign_reason)
        restored = restorer.restore_newest(self._steps, self._quarantined, abstract, sums)
        if restored is not None:
            _, meta = restored
            self._steps = [step for step in self._steps if step <= meta["step"]]
            self._saved = {s: info for s, info in self._saved.items() if s in self._steps}
        return restored

    def check(self) -> None:
        """Raises StorageError if a checkpoint could not be written; does not wait."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def wait(self) -> None:
        """Waits until everything is written; raises StorageError if it could not be."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    close = wait

    def _copy(self, x: jax.Array) -> np.ndarray | None:
        """Returns the unsharded array on the host in the process that writes, None in the others.

        All processes first replicate an array that is sharded over them, one array at a time.
        """
        if _is_split(x.sharding):
            if _layout(x) not in self._gather:
                self._gather[_layout(x)] = replicate_like(x)
            x = self._gather[_layout(x)](x)
        if not self._peers.is_first:
            return None
        full, seen = np.empty(x.shape, x.dtype), set()
        for shard in x.addressable_shards:
            if str(shard.index) not in seen:
                seen.add(str(shard.index))
                full[shard.index] = np.asarray(shard.data)
        return full

    def _write(
        self, saved: CheckpointInfo, items: Mapping[str, Any], meta: Mapping[str, Any]
    ) -> None:
        """Writes a checkpoint with retries, then prunes old ones; runs in a thread."""
        folder = self._folder / str(saved.step)

        def write() -> None:
            try:
                orbax_io.write(folder, items, meta)
            except Exception:  # whatever the storage raises
                orbax_io.discard(folder)
                raise

        def warn(error: Exception, when: str) -> None:
            logger.warning(f"{folder}: cannot be written ({one_line(error)}); {when}")

        self._flush_records()
        try:
            retry(write, RetryPolicy(self._config.write_attempts, 1.0), warn)
        except Exception as error:
            self._give_up(folder, saved.step, one_line(error))
            return
        self._saved[saved.step] = saved
        self._prune()

    def _give_up(self, folder: epath.Path, step: int, reason: str) -> None:
        newest = max(self._saved, default=None)
        saved = (
            "no step was saved before"
            if newest is None
            else f"the newest checkpoint is step {newest}"
        )
        attempts = self._config.write_attempts
        self._failure = StorageError(
            f"{folder}: cannot be written after {attempts} attempts ({reason}); {saved}; run the "
            "same command again to resume once the storage can be written to"
        )
        self._record_event("save_failed", step, {"reason": reason})

    def _prune(self) -> None:
        saved, ends = list(self._saved.values()), self._phase_ends
        why = reasons_to_keep(saved, self._config, ends, self._at_words)
        for step in [step for step, kept_for in why.items() if not kept_for]:
            del self._saved[step]
            folder = self._folder / str(step)
            try:
                orbax_io.remove(folder)
            except Exception as error:  # an extra checkpoint does no harm
                logger.warning(f"{folder}: cannot be removed ({one_line(error)})")


def _is_split(sharding: jax.sharding.Sharding) -> bool:
    """Returns whether no single process holds all of an array with this sharding."""
    return not (sharding.is_fully_addressable or sharding.is_fully_replicated)


def _layout(x: Any) -> tuple:
    return x.shape, x.dtype, x.sharding


def find_steps(workdir: Workdir, which: int | Literal["best", "all"] | None = None) -> list[int]:
    """Returns the steps of complete checkpoints: the given step, the newest (None), the best, all.

    The best has the lowest held-out loss in the last phase with an evaluated checkpoint.

    Raises:
        UserError: the workdir holds no such checkpoint.
    """
    steps = complete_steps(workdir.checkpoints)
    if not steps:
        path, step = split_step(str(workdir))
        named = "" if step is None else f"; give the run {path}, and --step={step}"
        inside = description.run_inside(workdir)
        remedy = inside or named or "; give the folder of a run that has some"
        raise UserError(f"{workdir}: no checkpoints found{remedy}")
    if which == "all":
        return steps
    if which is None:
        return steps[-1:]
    if which == "best":
        phases = read_meta(workdir.checkpoints, steps[-1])["config"]["phases"]
        ends = [sum(p["steps"] for p in phases[: i + 1]) for i in range(len(phases))]
        best = best_by_phase(list_checkpoints(workdir.checkpoints), ends)
        if not best:
            raise UserError(
                f"{workdir}: no checkpoint was evaluated when it was saved; give a step "
                f"({_names(steps)}), or evaluate them all with `bert-jax evaluate --all`"
            )
        return [best[max(best)]]
    if which not in steps:
        raise UserError(
            f"{workdir}: no checkpoint of step {which}; complete steps: {_names(steps)}"
        )
    return [which]


def chosen_step(
    workdir: Workdir, which: int | Literal["best"] | None, known: Mapping[str, Any] | None
) -> int:
    """Returns the step that `which` names, as `find_steps`; by default the newest, or of a
    fine-tuned run the one that `config.task.keep` names. known: see `known_run`."""
    if which is None and known:  # runs of old versions have no task
        which = "best" if known["config"].get("task", {}).get("keep") == "best" else None
    (step,) = find_steps(workdir, which)
    return step


def _names(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps))


def load_params(
    workdir: Workdir, which: int | Literal["best"] | None = None, weights: Weights = "last"
) -> tuple[dict, dict[str, Any]]:
    """Loads the parameters of a step (see `chosen_step`) to one device, and its `meta`.

    Those of a discriminator have the tables that it reads, not what it adds to its generator's.

    Raises:
        UserError: the workdir holds no such checkpoint, it is another run's, or it has no such
            weights.
        StorageError: they are not bit for bit what was saved, or are in another format.
    """
    known = known_run(workdir)
    meta = read_own_meta(workdir, chosen_step(workdir, which, known), known)
    params, config = read_params(workdir, meta, weights), config_of(meta)
    return (summed(params) if trains_apart(config.model, learned_by(config)) else params), meta


def known_run(workdir: Workdir) -> dict[str, Any] | None:
    """Returns the description of the run in a workdir; None if its config.json is lost."""
    return description.read_description(workdir) if description.has_config_json(workdir) else None


def read_own_meta(workdir: Workdir, step: int, known: Mapping[str, Any] | None) -> dict[str, Any]:
    """Reads the `meta` of a step; raises as `load_params`. known: see `known_run`."""
    with _naming_other_steps(workdir, step):
        meta = read_meta(workdir.checkpoints, step)
    why = identity.foreign_reason(meta, known) if known else ""
    if known and why:
        task = known["config"].get("task", {}).get("name", "")  # none in runs of old versions
        command = description.training_command(task)
        raise UserError(
            f"{workdir.checkpoints / str(step)}: {why}; give the --step of another checkpoint. "
            f"`{command}` moves it to quarantine, or adopts it with --adopt"
        )
    return meta


def read_params(workdir: Workdir, meta: Mapping[str, Any], weights: Weights = "last") -> dict:
    """Reads the parameters of the step with this `meta`, as they are trained, to one device; raises
    as `load_params`."""
    name = "ema" if weights == "ema" else "params"
    if weights == "ema" and not meta["config"]["optimizer"].get("ema_decay"):
        raise UserError(
            f"{workdir}: trained without an average of its weights; leave out ema, or train with "
            "--config.optimizer.ema_decay=0.999"
        )
    return dict(read_part(workdir, meta, name, _params_of(meta)))


def read_part(workdir: Workdir, meta: Mapping[str, Any], name: str, shapes: Any) -> Any:
    """Reads a part of a state to one device.

    Args:
        meta: of its step, see `read_own_meta`.
        name: "params", "ema" or "opt".
        shapes: the part as ShapeDtypeStructs.

    Raises:
        UserError: the checkpoint holds arrays of other shapes.
        StorageError: as `load_params`.
    """
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), shapes)
    with _naming_other_steps(workdir, meta["step"]):
        return restore.read_verified(workdir, meta, {name: like}, fingerprint.program(None))[name]


@contextlib.contextmanager
def _naming_other_steps(workdir: Workdir, step: int) -> Iterator[None]:
    """Adds the other complete steps to the error of a damaged checkpoint."""
    try:
        yield
    except DamagedError as error:
        others = [other for other in complete_steps(workdir.checkpoints) if other != step]
        instead = (
            f"give another --step ({_names(others)})" if others else "no other checkpoint exists"
        )
        raise StorageError(f"{error}; {instead}") from error


def _params_of(meta: Mapping[str, Any]) -> Any:
    """Returns the parameters of a run as ShapeDtypeStructs."""
    config = config_of(meta)
    model, objectives = config.model, learned_by(config)
    return jax.eval_shape(
        lambda: init_params(model, ComputeConfig.plain(), objectives, jax.random.key(0))
    )
