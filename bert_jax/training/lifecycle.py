"""The start and end of a run: claims the workdir, restores a checkpoint, records how it ends."""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterator
from typing import Any

from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.distributed.job import Job
from bert_jax.errors import NumbersError, StoppedError
from bert_jax.exit_codes import STOPPED
from bert_jax.metrics.run_records import Event
from bert_jax.metrics.writer import MetricWriter
from bert_jax.runtime.log import logger
from bert_jax.training import claim, new_entries, skip_nonfinite, word_start
from bert_jax.training.averaging import with_average
from bert_jax.training.initial import start_from
from bert_jax.training.setup import RunContext
from bert_jax.training.state_sharding import State
from bert_jax.training.store_data import StoreData
from bert_jax.training.teacher import start_as
from bert_jax.workdir import description, identity


def claim_workdir(
    run: RunContext, writer: MetricWriter, adopt: bool
) -> tuple[RunContext, dict[str, Any]]:
    """Returns the run with its id, and the description that identifies its checkpoints.

    See `claim.mark_or_identify`. From here on the workdir belongs to the run; before, nothing in it
    changed.
    """
    text = ""
    if run.job.peers.is_first:
        known, adopted = claim.mark_or_identify(run.workdir, run.description, adopt=adopt)
        text = json.dumps(known)
        for entry in adopted:
            step, why = entry["step"], entry["why"]
            logger.info(f"adopts the checkpoint of step {step}, {why}")
            about = {"run_id": entry["run_id"], "reason": why}
            record_checkpoint(writer, run, "adopted", step, about)
    known = json.loads(run.job.peers.all_gather_text("run", text)[0])
    own = {name: value for name, value in known.items() if name in ("run_id", "adopted")}
    return dataclasses.replace(run, description=run.description | own), known


def restore_or_init(
    run: RunContext, checkpoints: RunCheckpoints, known: dict[str, Any], *, strict: bool
) -> tuple[State, bool]:
    """Returns the state to start or resume from, and whether its evaluation was interrupted.

    Args:
        known: the description that identifies the run's checkpoints, see `claim_workdir`.
        strict: fail on a checkpoint that is damaged or belongs to another run.
    """
    job, abstract = run.job, run.program.abstract
    with job.clock.activity("compile"):
        checkpoints.prepare(abstract)
    with job.clock.activity("restore"):
        foreign_reason = functools.partial(identity.foreign_reason, run=known)
        newest = checkpoints.restore_newest(abstract, strict=strict, foreign_reason=foreign_reason)
    state, meta = newest or (None, None)
    step = meta["step"] if meta else None
    if meta and not identity.is_adopted(meta, known):
        identity.check(run.workdir, meta, run.description, meta["step"])
    if job.peers.is_first:
        for change in claim.update_config_json(run.workdir, run.description, resuming_at=step):
            logger.info(change)
        description.copy_tokenizer(run.workdir, run.data.tokenizer.json)
    if state is None or meta is None:
        state = _new_state(run)
        if run.config.init_optimizer == "reset":  # else it has the average of its model
            state = with_average(state)
        return _unlatched(run, state), False
    state = _unlatched(run, state)
    unevaluated = meta["evaluation"] is None
    over = step == run.config.total_steps and not unevaluated
    what = "finished already, at" if over else "resumes from"
    logger.info(f"{what} step {step} in {run.workdir}")
    return state, unevaluated


def _unlatched(run: RunContext, state: State) -> State:
    return skip_nonfinite.reset_if_latched(state, run.config.optimizer.max_nonfinite_steps)


def store_to_count(run: RunContext) -> TokenStore | None:
    """Returns the store in which a new run counts words before its first step; None if it starts
    without."""
    copied = run.teacher and run.config.distillation.layers
    if run.initial or copied or not word_start.is_counted(run.config.model):
        return None
    return run.data.store if isinstance(run.data, StoreData) else None


def _new_state(run: RunContext) -> State:
    """Returns the state of a run's step 0."""
    state = run.program.init()
    if run.teacher and run.config.distillation.layers:
        if run.job.peers.is_first:
            layers = run.config.distillation.teacher_layers
            logger.info(f"starts as layers {layers}, embeddings and head of {run.config.teacher}")
        return start_as(state, run.teacher, run.config)
    if run.initial is None:
        if store := store_to_count(run):
            with run.job.clock.activity("data"):
                peers = run.job.peers
                return word_start.start_words(state, run.config, store, run.workdir, peers)
        return state
    state, lines = start_from(state, run.initial)
    counted = run.config.init_entries == "cooccurrence"
    store = run.data.store if counted and isinstance(run.data, StoreData) else None
    if word_start.is_counted(run.config.model) and store is None:
        lines.append("its words and its output bias are used, not counts of the store")
    if run.job.peers.is_first:
        for line in lines:
            logger.info(line)
    if store is not None:
        with run.job.clock.activity("data"):
            peers = run.job.peers
            state = new_entries.start_entries(
                state, run.config, run.initial, store, run.workdir, peers
            )
    return state


def record_checkpoint(
    writer: MetricWriter, run: RunContext, kind: Event, step: int, details: dict[str, Any]
) -> None:
    """Writes an event about a checkpoint to the metrics."""
    phase, _ = run.config.phase_at(min(max(step, 1), run.config.total_steps) - 1)
    writer.event(kind, step, phase, **details)


@contextlib.contextmanager
def closing_checkpoints(checkpoints: RunCheckpoints, job: Job) -> Iterator[None]:
    """Closes the checkpoints however the run ends, within the deadline of a save."""
    try:
        yield
    finally:
        with job.clock.activity("save"):
            checkpoints.close()


@contextlib.contextmanager
def recording_end(writer: MetricWriter, job: Job) -> Iterator[None]:
    """Writes the last record of a process that a thread or another process ends."""

    def record(code: int, line: str) -> None:
        seconds = job.clock.seconds()
        kind: Event = "stopped" if code == STOPPED else "lost"
        writer.event(kind, job.clock.step, 0, code=code, reason=line, seconds=seconds)

    job.before_end.append(record)
    with contextlib.ExitStack() as stack:
        stack.callback(job.before_end.remove, record)
        try:
            yield
        except (StoppedError, NumbersError):  # recorded where they were raised
            raise
        except BaseException:
            stack.pop_all()
            raise
