"""The training loop: batch → step → metrics → evaluate → save. The data state is the step."""

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
from bert_jax.metrics import MetricWriter, StepReport, step_flops
from bert_jax.objectives import Corpus
from bert_jax.step import Program, State, make_program
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


@dataclasses.dataclass
class Run:
    """A run in progress."""

    config: Config
    folder: epath.Path
    program: Program
    mesh: jax.sharding.Mesh
    phase: PhaseConfig
    train: Batches
    held_out: HeldOut
    corpus: Corpus
    description: dict[str, Any]


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
    checkpoints = Checkpoints(run.folder, config.checkpoint)
    with closing(checkpoints), jax.set_mesh(run.mesh):
        latest = checkpoints.latest_step()
        workdir.claim(run.folder, run.description, resuming=latest is not None)
        if latest is None:
            state = run.program.init()
        else:
            state = checkpoints.restore(latest, run.program.abstract)
            console.print(f"goes on from step {latest} in {run.folder}")
        _loop(run, state, latest or 0, checkpoints, stop_after)


def _prepare(config: Config, folder: epath.Path) -> Run:
    store = open_store(config.data.store)
    check_vocabulary(config, store)
    (phase,) = config.phases
    mesh = sharding.make_mesh(config.mesh)
    sharding.check_divides(mesh, phase.batch_size)
    train = make_batches(config, store, store.train, phase)
    corpus = Corpus.of(store)
    console.print(
        f"{len(store.train.tokens):,} training tokens, {train.rows_per_epoch:,} rows an epoch, "
        f"{phase.steps * phase.batch_size / train.rows_per_epoch:.1f} epochs; "
        f"{mesh.size} devices ({mesh.devices.flat[0].device_kind})"
    )
    workdir.keep_tokenizer(folder, store)
    return Run(
        config=config,
        folder=folder,
        program=make_program(config, mesh, corpus),
        mesh=mesh,
        phase=phase,
        train=train,
        held_out=HeldOut(config, phase, make_batches(config, store, store.held_out, phase), corpus),
        corpus=corpus,
        description=workdir.describe(config, store, train.rows_per_epoch),
    )


def _loop(
    run: Run, state: State, first: int, checkpoints: Checkpoints, stop_after: int | None
) -> None:
    config, last = run.config, run.config.total_steps
    train = run.program.compile_train(run.train.batch(0, rows=[]), run.phase.batch_size)

    def make(step: int) -> dict[str, jax.Array]:
        rows = functools.partial(run.train.batch, step)
        return sharding.global_batch(rows, run.program.rows, run.phase.batch_size)

    writer = MetricWriter(run.folder, first)
    report = StepReport(run.corpus.sources, step_flops(config.model, run.phase), _peak_flops(run))
    with (
        closing(writer),
        _stop_requests() as stop,
        RunDisplay(last, first) as display,
        closing(prefetch(make, first, last)) as batches,
    ):
        for step, batch in batches:
            state, metrics = train(state, batch)
            done = step + 1
            report.add(metrics)
            display.advance(done)
            if done % config.log_every_steps == 0 or done == last:
                scalars = report.take()
                writer.write("train", done, scalars)
                display.train(done, scalars)
            if done % config.evaluation.every_steps == 0 or done == last:
                with report.paused():
                    scalars = run.held_out.evaluate(run.program, state["params"])
                writer.write("eval", done, scalars)
                display.evaluation(done, scalars)
            stopping = bool(stop) or done == stop_after
            if done % config.checkpoint.every_steps == 0 or done == last or stopping:
                with report.paused():
                    checkpoints.save(state, run.description)
            if stopping and done < last:
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
