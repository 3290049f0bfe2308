"""Training: restore or initialize, then phase by phase batch → step → metrics → evaluate → save.

The data state is the step. All processes of a job run this code; only process 0 writes.
"""

import contextlib
import functools
from contextlib import closing

import jax
from etils import epath

from bert_jax.checkpoint import catalog
from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.config.schema import Config
from bert_jax.config.serialization import flatten
from bert_jax.distributed.job import Job, in_process_job
from bert_jax.distributed.preemption import StopRequestedError
from bert_jax.errors import UserError
from bert_jax.metrics import fill_records, goodput, run_records, time_left
from bert_jax.metrics.wandb_run import WandbRun, check_installed
from bert_jax.metrics.writer import MetricWriter
from bert_jax.runtime.console import elapsed
from bert_jax.runtime.log import logger
from bert_jax.runtime.memory import peak_bytes
from bert_jax.runtime.versions import software
from bert_jax.training import lifecycle, store_data
from bert_jax.training.options import DEFAULTS, RunOptions
from bert_jax.training.phase_trainer import PhaseTrainer
from bert_jax.training.profiling import Profiler
from bert_jax.training.progress import RunDisplay
from bert_jax.training.resolve import resolve
from bert_jax.training.run_data import OpenData
from bert_jax.training.setup import (
    CompiledPhase,
    RunContext,
    RunPhase,
    compile_phase,
    prepare,
    with_outputs,
)
from bert_jax.training.state_sharding import State
from bert_jax.workdir import lock, words_reached
from bert_jax.workdir.layout import Workdir


def train(
    config: Config,
    folder: epath.PathLike,
    *,
    open_data: OpenData,
    job: Job | None = None,
    options: RunOptions = DEFAULTS,
) -> None:
    """Trains until `config.total_steps`; resumes from the newest good checkpoint in the folder.

    Args:
        folder: the workdir; may be a bucket.
        open_data: opens what the run is trained on.
        job: the job that this process belongs to; by default a job of this process alone.

    Raises:
        UserError: the data, the configuration and the workdir are not compatible, or the time
            budget is too short, or wandb is not installed.
        StoppedError: the run was interrupted; everything is saved.
        NumbersError: too many losses or gradients in a row are not finite; everything is saved.
        StorageError: a checkpoint cannot be written, no existing checkpoint is good, or the data
            changed while they were in use.
    """
    check_installed(options.wandb)
    with contextlib.ExitStack() as stack:
        job = job or stack.enter_context(in_process_job(config))
        workdir = Workdir.open(folder)
        config, data, budget = resolve(config, workdir, job, open_data, options.time_budget)
        run = prepare(config, workdir, job, data)
        if job.peers.is_first:
            stack.enter_context(lock.lock(run.workdir.lock))
        run = budget.decide(run)
        if options.profile:
            options.profile.check(run.config.total_steps)
        writer = stack.enter_context(closing(_metric_writer(run)))
        run, known = lifecycle.claim_workdir(run, writer, options.adopt)
        run = with_outputs(run)
        _start_wandb(options.wandb, run, writer)
        checkpoints = _checkpoints(run, writer)
        stack.enter_context(lifecycle.closing_checkpoints(checkpoints, job))
        stack.enter_context(jax.set_mesh(run.mesh))
        state, unevaluated = lifecycle.restore_or_init(
            run, checkpoints, known, strict=options.strict_restore
        )
        if job.peers.is_first:
            find_saved = functools.partial(catalog.complete_steps, run.workdir.checkpoints)
            words_reached.tell(run.config, run.description, int(state["step"]), find_saved)
        _train(run, state, unevaluated, checkpoints, writer, options)


pretrain = functools.partial(train, open_data=store_data.open_data)  # on a token store


def _metric_writer(run: RunContext) -> MetricWriter:
    workdir = run.workdir
    hparams = flatten(run.description["config"])
    place = workdir.tensorboard / workdir.name
    return MetricWriter(workdir.metrics, place, hparams, is_first=run.job.peers.is_first)


def _checkpoints(run: RunContext, writer: MetricWriter) -> RunCheckpoints:
    return RunCheckpoints(
        run.workdir,
        run.config.checkpoint,
        run.config.phase_ends,
        run.steps_to_keep,
        peers=run.job.peers,
        record_event=functools.partial(lifecycle.record_checkpoint, writer, run),
        flush_records=writer.flush,
    )


def _start_wandb(project: str | None, run: RunContext, writer: MetricWriter) -> None:
    """Sends metrics to a project of Weights & Biases too, if one is given."""
    if project and run.job.peers.is_first:
        about = run.description
        writer.wandb = WandbRun(project, about["run_id"], run.workdir.name, about["config"])


def _train(
    run: RunContext,
    state: State,
    unevaluated: bool,
    checkpoints: RunCheckpoints,
    writer: MetricWriter,
    options: RunOptions,
) -> None:
    """Trains the phases that are left; unevaluated: the evaluation of the state was interrupted."""
    job = run.job
    first = job.clock.step = int(state["step"])
    left = [p for p in run.phases if p.last > first or (p.last == first and unevaluated)]
    with lifecycle.recording_end(writer, job):
        compiled = _start(run, left, first, writer)
        profiler = Profiler(run.workdir.profile, options.profile if job.peers.is_first else None)
        with RunDisplay(run.config.total_steps, first, len(run.phases)) as display:
            for phase, functions in zip(left, compiled, strict=True):
                trainer = PhaseTrainer(
                    run, phase, functions, checkpoints, writer, display, profiler
                )
                state = _train_phase(trainer, state, unevaluated, options.stop_after)
            with job.clock.activity("save"):
                checkpoints.wait()
            if left:
                _finish(run, writer, left[-1])


def _train_phase(
    trainer: PhaseTrainer, state: State, unevaluated: bool, stop_after: int | None
) -> State:
    """Trains to the end of the phase from the step of the state; returns the new state."""
    config = trainer.config
    try:
        state = trainer.start(state)
        if unevaluated:
            trainer.repeat_evaluation(state)
        if trainer.done == 0:
            trainer.begin(state)
        with closing(trainer.batches()) as batches:
            while trainer.done < trainer.phase.last:
                step, batch = trainer.next_batch(batches)
                state = trainer.train_step(step, state, batch)
                if trainer.is_due(config.log_every_steps):
                    trainer.log()
                if trainer.is_due(config.evaluation.every_steps):
                    trainer.evaluate(state)
                by_words = trainer.done in trainer.run.steps_to_keep
                if by_words or trainer.is_due(config.checkpoint.every_steps):
                    trainer.save(state)
                if trainer.done == stop_after != config.total_steps:
                    raise StopRequestedError
    except StopRequestedError:
        trainer.stop(state)
    finally:
        trainer.profiler.close(trainer.done)
    return state


def _start(
    run: RunContext, left: list[RunPhase], first: int, writer: MetricWriter
) -> list[CompiledPhase]:
    """Records that an attempt starts at step `first`; returns the functions of the phases left."""
    job = run.job
    if left:  # a finished run starts no new attempt
        logger.info("compiling")
        writer.event(
            "start",
            first,
            left[0].index,
            processes=job.peers.num_processes,
            hosts=list(job.peers.hosts),
            devices=run.mesh.size,
            versions=software(),
            seconds=job.clock.seconds(),
            **({"hidden": fill_records.hidden(run.fills.sentences)} if run.fills else {}),
        )
    with elapsed("compiling"):
        compiled = [compile_phase(run, phase, first) for phase in left]
    # A barrier: on CPUs the first all-reduce waits at most 30 s for the slowest process.
    job.peers.all_gather_text("compiled")
    return compiled


def _finish(run: RunContext, writer: MetricWriter, phase: RunPhase) -> None:
    """Records the end of the run and prints where its time went."""
    run.data.check()
    seconds = run.job.clock.seconds()
    step, peak = run.config.total_steps, peak_bytes()
    writer.event("finished", step, phase.index, seconds=seconds, peak_bytes=peak)
    if not run.job.peers.is_first:
        return
    try:
        summary = goodput.account(list(run_records.records(run.workdir.metrics)))
    except UserError as error:  # everything is saved; only this summary is lost
        logger.warning(str(error))
        return
    logger.info(goodput.render(summary))
    if budget := run.description.get("time_budget"):
        logger.info(time_left.against_budget(summary.wall, budget["seconds"]))
