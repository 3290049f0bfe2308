"""Measures what the steps of a run cost, on a state that is then dropped."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar

import jax

from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.data_pipeline.batch import prefetch
from bert_jax.distributed.job import Job
from bert_jax.runtime.log import logger
from bert_jax.training import word_start
from bert_jax.training.lifecycle import store_to_count
from bert_jax.training.setup import RunContext
from bert_jax.training.state_sharding import State
from bert_jax.workdir.layout import SCRATCH, Workdir

_STEPS = 50  # the first of them not timed: it may wait for its batch and for libraries
_SAVED = "/jax/compilation_cache/compile_time_saved_sec"

_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class Measured:
    """Seconds that the steps of a run are computed from."""

    elapsed: float  # since the start of the job
    compile_train: float  # one program, without the help of the cache
    compile_evaluate: float
    step: float  # of the first phase
    evaluation: float = 0.0  # one held-out evaluation in the first phase
    save: float = 0.0  # of a checkpoint, while training waits
    write: float = 0.0  # of the last checkpoint, after that


def measure(run: RunContext, seconds: float) -> Measured:
    """Measures the first phase on a state that is then dropped; all processes call it.

    Process 0 stops early if `seconds`, the budget, are over: then no number of steps fits.
    """
    phase, job = run.phases[0], run.job
    if store := store_to_count(run):  # the run reads what is counted here
        with job.clock.activity("data"):
            word_start.counted_arrays(run.config, store, run.workdir, job.peers)
    with jax.set_mesh(run.mesh), job.clock.activity("start"):
        logger.info(f"compiling, to measure the speed of {_STEPS} steps")
        program, data = run.program, phase.data
        rows = data.train.batch(0, rows=[])
        train, compile_train = _compiled(job, lambda: program.compile_train(rows, data.shape))
        evaluate, compile_evaluate = _compiled(job, lambda: data.held_out.compile(program))
        job.peers.all_gather_text("compiled")  # as in `loop._start`
        state, step = _train(run, train, seconds)
        measured = Measured(_elapsed(job), compile_train, compile_evaluate, step)
        if job.peers.is_first and measured.elapsed > seconds:
            return measured
        began = _elapsed(job)
        phase.data.held_out.evaluate(
            run.program, state["params"], lambda tokens: job.clock.progress(), compiled=evaluate
        )
        evaluation = _elapsed(job) - began
        save, write = _save(run, state)
        return dataclasses.replace(
            measured, elapsed=_elapsed(job), evaluation=evaluation, save=save, write=write
        )


def _train(run: RunContext, train: jax.stages.Compiled, seconds: float) -> tuple[State, float]:
    """Returns the state after the measured steps, and the seconds of a step as the run logs them.
    Process 0 stops when `seconds` are over."""
    phase, job = run.phases[0], run.job
    state, metrics = run.program.init(), run.step_metrics(phase.data.read)
    with closing(prefetch(functools.partial(run.batch, phase), 0, _STEPS)) as batches:
        for step, batch in batches:
            state, numbers = train(state, batch, *run.frozen)
            metrics.add(numbers, step)
            job.clock.progress()
            if step == 0:
                metrics.take()
            elif job.peers.is_first and _elapsed(job) > seconds:
                break
    return state, metrics.take()["step_seconds"]


def _save(run: RunContext, state: State) -> tuple[float, float]:
    """Returns the seconds that training waits for a checkpoint, and that writing it takes then."""
    job, scratch = run.job, Workdir.open(run.workdir.path / SCRATCH)
    if job.peers.is_first and scratch.path.exists():
        scratch.path.rmtree()  # of a process that was killed while it measured
    checkpoints = RunCheckpoints(scratch, run.config.checkpoint, peers=job.peers)
    checkpoints.prepare(run.program.abstract)
    began = _elapsed(job)
    checkpoints.save(state, run.description)
    saved = _elapsed(job)
    checkpoints.wait()
    written = _elapsed(job)
    if job.peers.is_first:
        scratch.path.rmtree()
    return saved - began, written - saved


def _elapsed(job: Job) -> float:
    """Returns the seconds since the job started, as goodput counts them."""
    return sum(job.clock.seconds().values())


def _compiled(job: Job, compile_program: Callable[[], _Result]) -> tuple[_Result, float]:
    """Returns a compiled program, and the seconds that compiling it takes without the cache."""
    with _saved_by_cache() as saved, job.clock.activity("compile"):
        began = time.monotonic()
        program = compile_program()
        return program, time.monotonic() - began + sum(saved)


@contextlib.contextmanager
def _saved_by_cache() -> Iterator[list[float]]:
    """Collects the seconds of compilation that the cache of compiled programs saves inside."""
    saved: list[float] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _SAVED:
            saved.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield saved
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
