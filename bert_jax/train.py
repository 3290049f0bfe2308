"""The training loop: batch → step → metrics → evaluate → save, phase by phase.

The data state is the step. All processes of a job run this loop alike; process 0 alone writes.
"""

import contextlib
import dataclasses
import functools
import json
from contextlib import closing
from typing import Any, NoReturn

import jax
from etils import epath

from bert_jax import job as jobs
from bert_jax import sharding, workdir
from bert_jax.batches import make_batches
from bert_jax.checkpoint import Checkpoints
from bert_jax.config import Config, PhaseConfig
from bert_jax.errors import StoppedError, UserError
from bert_jax.evaluate import HeldOut
from bert_jax.job import Job
from bert_jax.metrics import STOPPED, MetricWriter, seconds_left, step_flops
from bert_jax.objectives import Corpus
from bert_jax.preemption import StopRequestedError
from bert_jax.saved import read_meta
from bert_jax.step import Program, State, make_program
from bert_jax.step_report import StepReport
from bert_jax.terminal import RunDisplay, console
from data_pipeline.batch import Batches, prefetch
from data_pipeline.store import TokenStore, open_store
from launch.accelerators import peak_flops


def check_vocabulary(config: Config, store: TokenStore) -> None:
    """Raises UserError where the model and the store do not have the same number of ids."""
    if config.model.vocab_size != store.vocab_size:
        raise UserError(
            f"config.model.vocab_size={config.model.vocab_size}, but ids in {store.path} go up to "
            f"{store.vocab_size - 1}; pass --config.model.vocab_size={store.vocab_size}"
        )


@dataclasses.dataclass(frozen=True)
class Stage:
    """A phase of a run with its data."""

    index: int
    phase: PhaseConfig
    first: int  # updates done when it starts
    train: Batches
    held_out: HeldOut

    @property
    def last(self) -> int:
        """Updates done when it ends."""
        return self.first + self.phase.steps

    def __str__(self) -> str:
        phase, rows = self.phase, self.train.rows_per_epoch
        epochs = phase.steps * phase.batch_size / rows
        fill, bound = self.train.fill()
        possible = f", packed {bound:.2%} at most" if phase.examples_per_row > 1 else ""
        return (
            f"{phase.steps:,} steps of {phase.batch_size:,} rows of {phase.row_tokens} tokens "
            f"({fill:.2%} real{possible}), {rows:,} rows an epoch, {epochs:.1f} epochs"
        )


@dataclasses.dataclass(frozen=True)
class Run:
    """A run in progress."""

    config: Config
    folder: epath.Path
    store: TokenStore
    program: Program
    mesh: jax.sharding.Mesh
    stages: tuple[Stage, ...]
    description: dict[str, Any]
    job: Job


@dataclasses.dataclass(frozen=True)
class _Compiled:
    """What the devices do in a phase; compiled before the first step of a run, so that nothing
    unsaved ever waits for a compiler."""

    train: jax.stages.Compiled
    evaluate: jax.stages.Compiled
    start_phase: jax.stages.Compiled | None  # None: nothing left to start


@dataclasses.dataclass(frozen=True)
class _Outlets:
    """Where a run writes."""

    checkpoints: Checkpoints
    writer: MetricWriter
    display: RunDisplay


def pretrain(
    config: Config, folder: epath.PathLike, *, job: Job | None = None, stop_after: int | None = None
) -> None:
    """Trains until `config.total_steps`, from the newest good checkpoint in the folder if any.

    Args:
        folder: the workdir; may be a bucket.
        job: this process's part in a job; by default there is this process alone.
        stop_after: stop (and save) at this step, as if interrupted there.

    Raises:
        UserError: the store, the configuration and the folder do not fit together.
        StoppedError: interrupted; everything is saved.
        NumbersError: too many steps in a row whose loss or gradient is not finite.
        StorageError: a checkpoint cannot be written, or none that is there is good.
    """
    with contextlib.ExitStack() as stack:
        job = job or stack.enter_context(jobs.within(config))
        run = _prepare(config, epath.Path(folder), job)
        checkpoints = Checkpoints(run.folder, config.checkpoint, config.phase_ends)
        stack.enter_context(closing(checkpoints))
        stack.enter_context(jax.set_mesh(run.mesh))
        latest = checkpoints.latest_step()
        if job.peers.is_first:
            workdir.claim(run.folder, run.description, resuming_at=latest)
            workdir.keep_tokenizer(run.folder, run.store)
        unevaluated = False
        if latest is None:
            state = run.program.init()
        else:
            unevaluated = read_meta(run.folder, latest)["evaluation"] is None
            with job.watch.doing("restore"):
                state = checkpoints.restore(latest, run.program.abstract)
            console.print(f"goes on from step {latest} in {run.folder}")
        first = job.watch.step = latest or 0
        left = [s for s in run.stages if s.last > first or (s.last == first and unevaluated)]
        compiled = [_compile(run, stage, first) for stage in left]
        writer = stack.enter_context(closing(MetricWriter(run.folder, first)))
        display = stack.enter_context(RunDisplay(config.total_steps, first, len(run.stages)))
        outlets = _Outlets(checkpoints, writer, display)
        for stage, programs in zip(left, compiled, strict=True):
            state = _train(run, stage, programs, state, outlets, stop_after)


def _prepare(config: Config, folder: epath.Path, job: Job) -> Run:
    workdir.check_free(folder)
    if not config.data.store:
        raise UserError(
            "config.data.store is empty; pass --config.data.store=… with the folder of a token "
            "store (`bert-jax data build` makes one)"
        )
    store = open_store(config.data.store)
    check_vocabulary(config, store)
    mesh = sharding.make_mesh(config.mesh)
    for phase in config.phases:
        sharding.check_divides(mesh, phase.batch_size, phase.micro_batches)
    corpus = Corpus.of(store)
    # All phases are planned now: what does not work should not be found out after a week.
    stages = tuple(
        Stage(
            index=index,
            phase=phase,
            first=config.phase_ends[index] - phase.steps,
            train=make_batches(config, store, store.train, phase),
            held_out=HeldOut(config, phase, store),
        )
        for index, phase in enumerate(config.phases)
    )
    peers = job.peers
    devices = f"{mesh.size} devices ({mesh.devices.flat[0].device_kind})"
    if peers.num_processes > 1:
        devices += f" in {peers.num_processes} processes"
    only = f"{stages[0]}; " if len(stages) == 1 else ""
    console.print(f"{len(store.train.tokens):,} training tokens; {only}{devices}")
    description = workdir.describe(config, store, [s.train.rows_per_epoch for s in stages])
    data = json.dumps(description["data"], sort_keys=True)
    if len(set(peers.exchange("data", data))) > 1:
        raise UserError(
            f"{peers.name(peers.process_id)}: {config.data.store} is not the same store on every "
            "machine (by digest); give all of them the same one"
        )
    return Run(
        config=config,
        folder=folder,
        store=store,
        program=make_program(config, mesh, corpus),
        mesh=mesh,
        stages=stages,
        description=description,
        job=job,
    )


def _compile(run: Run, stage: Stage, first: int) -> _Compiled:
    program, doing = run.program, functools.partial(run.job.watch.doing, "compile")
    with doing():
        train = program.compile_train(stage.train.batch(0, rows=[]), stage.phase)
    with doing():
        evaluate = stage.held_out.compile(program)
    with doing():
        starts = program.compile_start_phase() if stage.first >= max(first, 1) else None
    return _Compiled(train, evaluate, starts)


def _train(
    run: Run,
    stage: Stage,
    compiled: _Compiled,
    state: State,
    outlets: _Outlets,
    stop_after: int | None,
) -> State:
    """What is left of a phase."""
    config, program, phase, job = run.config, run.program, stage.phase, run.job
    done = first = int(state["step"])
    if first == stage.first and compiled.start_phase:
        # The checkpoint at the end of a phase is from before this, so it is done once either way.
        state = compiled.start_phase(state)
    outlets.display.phase(stage.index, stage)
    report = StepReport(run.store.sources, step_flops(config, phase), _peak_flops(run))

    def make(step: int) -> dict[str, jax.Array]:
        rows = functools.partial(stage.train.batch, step - stage.first)
        return sharding.global_batch(rows, program.rows, phase.batch_size)

    prepared = prefetch(make, first, stage.last, while_waiting=job.stops.check)
    try:
        if done == stage.last:  # stopped in the evaluation at its end, which is left to do
            _evaluate(run, stage, compiled, done, state, outlets)
        with closing(prepared) as batches:
            while done < stage.last:
                with job.watch.doing("data"):
                    step, batch = next(batches)
                job.stops.begin()
                with job.watch.doing("step"):
                    state, metrics = compiled.train(state, batch)
                    report.add(metrics)
                done = job.watch.step = step + 1
                _after_step(run, stage, compiled, done, state, report, outlets)
                if done == stop_after != config.total_steps:
                    raise StopRequestedError
    except StopRequestedError:
        _stop(run, stage, done, state, report, outlets)
    return state


def _after_step(
    run: Run,
    stage: Stage,
    compiled: _Compiled,
    done: int,
    state: State,
    report: StepReport,
    outlets: _Outlets,
) -> None:
    """Reports, evaluates and saves where it is time to, after `done` updates."""
    config, display, evaluated, last = run.config, outlets.display, None, done == stage.last
    display.advance(done)
    if done % config.log_every_steps == 0 or last:
        scalars = report.take()
        outlets.writer.write("train", done, stage.index, scalars)
        display.train(done, scalars, seconds_left(config, done, scalars["step_seconds"]))
    if done % config.evaluation.every_steps == 0 or last:
        with report.paused():
            evaluated = _evaluate(run, stage, compiled, done, state, outlets)
    if done % config.checkpoint.every_steps == 0 or last:
        with report.paused(), run.job.watch.doing("save"):
            outlets.checkpoints.save(
                state, run.description, phase=stage.index, evaluation=evaluated
            )


def _evaluate(
    run: Run, stage: Stage, compiled: _Compiled, done: int, state: State, outlets: _Outlets
) -> dict[str, float]:
    """Held-out figures; raises StopRequestedError where all processes agreed to stop in it."""
    watch, stops = run.job.watch, run.job.stops
    with watch.doing("evaluate"):
        evaluated = stage.held_out.evaluate(
            run.program,
            state["params"],
            lambda tokens: watch.progress(),
            compiled=compiled.evaluate,
            begin=stops.begin,
            while_waiting=stops.check,
        )
    outlets.writer.write("eval", done, stage.index, evaluated)
    outlets.display.evaluation(done, evaluated)
    return evaluated


def _stop(
    run: Run, stage: Stage, done: int, state: State, report: StepReport, outlets: _Outlets
) -> NoReturn:
    """Saves and ends the run here."""
    with report.paused(), run.job.watch.doing("save"):
        outlets.checkpoints.save(state, run.description, phase=stage.index)
        outlets.checkpoints.close()
    outlets.writer.write(STOPPED, done, stage.index, {})
    raise StoppedError(f"saved step {done} in {run.folder}; the same command goes on")


def _peak_flops(run: Run) -> float | None:
    peak = peak_flops(run.mesh.devices.flat[0].device_kind, run.config.compute.dtype)
    return peak * run.mesh.size if peak else None
