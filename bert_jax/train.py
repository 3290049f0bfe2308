"""The training loop: batch → step → metrics → evaluate → save, phase by phase.

The data state is the step.
"""

import dataclasses
import functools
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import jax
from etils import epath

from bert_jax import sharding, workdir
from bert_jax.batches import make_batches
from bert_jax.checkpoint import Checkpoints
from bert_jax.config import Config, PhaseConfig
from bert_jax.errors import StoppedError, UserError
from bert_jax.evaluate import HeldOut
from bert_jax.metrics import STOPPED, MetricWriter, seconds_left, step_flops
from bert_jax.objectives import Corpus
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


@dataclasses.dataclass(frozen=True)
class _Outlets:
    """Where a run writes, and from where it is stopped."""

    checkpoints: Checkpoints
    writer: MetricWriter
    display: RunDisplay
    stop: list[int]  # not empty: stop after this step
    stop_after: int | None


def pretrain(config: Config, folder: epath.PathLike, *, stop_after: int | None = None) -> None:
    """Trains until `config.total_steps`, from the newest checkpoint in the folder if there is one.

    Args:
        folder: the workdir; may be a bucket.
        stop_after: stop (and save) at this step, as if interrupted there.

    Raises:
        UserError: the store, the configuration and the folder do not fit together.
        StoppedError: interrupted; everything is saved.
    """
    run = _prepare(config, epath.Path(folder))
    checkpoints = Checkpoints(run.folder, config.checkpoint, config.phase_ends)
    with closing(checkpoints), jax.set_mesh(run.mesh):
        latest = checkpoints.latest_step()
        workdir.claim(run.folder, run.description, resuming_at=latest)
        workdir.keep_tokenizer(run.folder, run.store)
        checkpoints.prepare(run.program.abstract)
        found = checkpoints.restore_newest(run.program.abstract)
        if found is None:
            first, state = 0, run.program.init()
        else:
            state, meta = found
            first = meta["step"]
            console.print(f"goes on from step {first} in {run.folder}")
        with (
            closing(MetricWriter(run.folder, first)) as writer,
            _stop_requests() as stop,
            RunDisplay(config.total_steps, first, len(run.stages)) as display,
        ):
            outlets = _Outlets(checkpoints, writer, display, stop, stop_after)
            for stage in run.stages:
                if stage.last > first:
                    state = _train(run, stage, state, outlets)


def _prepare(config: Config, folder: epath.Path) -> Run:
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
    devices = f"{mesh.size} devices ({mesh.devices.flat[0].device_kind})"
    only = f"{stages[0]}; " if len(stages) == 1 else ""
    console.print(f"{len(store.train.tokens):,} training tokens; {only}{devices}")
    return Run(
        config=config,
        folder=folder,
        store=store,
        program=make_program(config, mesh, corpus),
        mesh=mesh,
        stages=stages,
        description=workdir.describe(config, store, [s.train.rows_per_epoch for s in stages]),
    )


def _train(run: Run, stage: Stage, state: State, outlets: _Outlets) -> State:
    """What is left of a phase."""
    config, program, phase = run.config, run.program, stage.phase
    first = int(state["step"])
    if first == stage.first > 0:
        # The checkpoint at the end of a phase is from before this, so it is done once either way.
        state = program.start_phase(state)
    outlets.display.phase(stage.index, stage)
    train = program.compile_train(stage.train.batch(0, rows=[]), phase)

    def make(step: int) -> dict[str, jax.Array]:
        rows = functools.partial(stage.train.batch, step - stage.first)
        return sharding.global_batch(rows, program.rows, phase.batch_size)

    report = StepReport(run.store.sources, step_flops(config, phase), _peak_flops(run))
    with closing(prefetch(make, first, stage.last)) as batches:
        for step, batch in batches:
            state, metrics = train(state, batch)
            report.add(metrics)
            _after_step(run, stage, step + 1, state, report, outlets)
    return state


def _after_step(
    run: Run, stage: Stage, done: int, state: State, report: StepReport, outlets: _Outlets
) -> None:
    """Reports, evaluates, saves and stops where it is time to, after `done` updates."""
    config, display, evaluated, last = run.config, outlets.display, None, done == stage.last
    display.advance(done)
    if done % config.log_every_steps == 0 or last:
        scalars = report.take()
        outlets.writer.write("train", done, stage.index, scalars)
        display.train(done, scalars, seconds_left(config, done, scalars["step_seconds"]))
    if done % config.evaluation.every_steps == 0 or last:
        with report.paused():
            evaluated = stage.held_out.evaluate(run.program, state["params"])
        outlets.writer.write("eval", done, stage.index, evaluated)
        display.evaluation(done, evaluated)
    stopping = bool(outlets.stop) or done == outlets.stop_after
    if done % config.checkpoint.every_steps == 0 or last or stopping:
        with report.paused():
            outlets.checkpoints.save(
                state, run.description, phase=stage.index, evaluation=evaluated
            )
    if stopping and done < config.total_steps:
        outlets.writer.write(STOPPED, done, stage.index, {})
        raise StoppedError(f"saved step {done} in {run.folder}; the same command goes on")


def _peak_flops(run: Run) -> float | None:
    peak = peak_flops(run.mesh.devices.flat[0].device_kind, run.config.compute.dtype)
    return peak * run.mesh.size if peak else None


@contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """A list that is empty until SIGINT or SIGTERM arrives; a second SIGINT interrupts at once."""
    requests: list[int] = []

    def note(number: int, frame: Any) -> None:
        if requests and number == signal.SIGINT:
            raise KeyboardInterrupt
        requests.append(number)
        console.print("stopping: saves after this step (Ctrl-C again: at once, unsaved)")

    old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requests
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
