"""Training: restore or initialize, then phase by phase batch → step → metrics → evaluate → save.

The data state is the step. All processes of a job run this code; only process 0 writes.
"""

import contextlib
import functools
from contextlib import closing

import jax
from etils import epath

from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.config.schema import Config
from bert_jax.distributed.job import Job, in_process_job
from bert_jax.errors import UserError
from bert_jax.metrics import goodput, records
from bert_jax.metrics.writer import MetricWriter
from bert_jax.runtime.log import logger
from bert_jax.runtime.versions import versions
from bert_jax.training import recovery
from bert_jax.training.phase_loop import PhaseLoop
from bert_jax.training.profiling import Profiler, Steps
from bert_jax.training.progress import RunDisplay
from bert_jax.training.setup import RunContext, RunPhase, compile_phase, prepare
from bert_jax.training.state_sharding import State
from bert_jax.workdir import lock


def pretrain(
    config: Config,
    folder: epath.PathLike,
    *,
    job: Job | None = None,
    stop_after: int | None = None,
    strict_restore: bool = False,
    adopt: bool = False,
    profile: Steps | None = None,
) -> None:
    """Trains until `config.total_steps`; resumes from the newest good checkpoint in the folder.

    Args:
        folder: the workdir; may be a bucket.
        job: the job that this process belongs to; by default a job of this process alone.
        stop_after: save and stop at this step, as if preempted there.
        strict_restore: fail at a checkpoint that is damaged or of another run, instead of moving it
            to quarantine and restoring an older one.
        adopt: use checkpoints in the folder although they belong to another run.
        profile: steps to profile.

    Raises:
        UserError: the store, the configuration and the workdir are not compatible.
        StoppedError: the run was interrupted; everything is saved.
        NumbersError: too many losses or gradients in a row are not finite; everything is saved.
        StorageError: a checkpoint cannot be written, no existing checkpoint is good, or the store
            changed while it was in use.
    """
    with contextlib.ExitStack() as stack:
        job = job or stack.enter_context(in_process_job(config))
        if profile:
            profile.check(config.total_steps)
        run = prepare(config, epath.Path(folder), job)
        if job.peers.is_first:
            stack.enter_context(lock.lock(run.folder))
        writer = stack.enter_context(closing(MetricWriter(run.folder)))
        run, known = recovery.claim_workdir(run, writer, adopt)
        checkpoints = RunCheckpoints(
            run.folder,
            config.checkpoint,
            config.phase_ends,
            exchange=job.peers.all_gather_text,
            tell=functools.partial(recovery.record_checkpoint, writer, run),
        )
        stack.enter_context(recovery.closing_checkpoints(checkpoints, job))
        stack.enter_context(jax.set_mesh(run.mesh))
        state, unevaluated = recovery.restore_or_init(
            run, checkpoints, known, strict=strict_restore
        )
        _train(run, state, unevaluated, checkpoints, writer, profile, stop_after)


def _train(
    run: RunContext,
    state: State,
    unevaluated: bool,
    checkpoints: RunCheckpoints,
    writer: MetricWriter,
    profile: Steps | None,
    stop_after: int | None,
) -> None:
    """Trains the phases that are left; unevaluated: the evaluation of the state was interrupted."""
    job, config = run.job, run.config
    first = job.clock.step = int(state["step"])
    left = [p for p in run.phases if p.last > first or (p.last == first and unevaluated)]
    _announce(run, left, first)
    with contextlib.ExitStack() as stack:
        stack.enter_context(recovery.recording_end(writer, job))
        if left:  # a finished run starts no new attempt
            _record_start(run, writer, left[0], first)
        compiled = [compile_phase(run, phase, first) for phase in left]
        # A barrier: on CPUs the first all-reduce waits at most 30 s for the slowest process.
        job.peers.all_gather_text("compiled")
        display = stack.enter_context(RunDisplay(config.total_steps, first, len(run.phases)))
        profiler = Profiler(run.folder, profile if job.peers.is_first else None)
        for phase, functions in zip(left, compiled, strict=True):
            loop = PhaseLoop(
                run,
                phase,
                functions,
                checkpoints,
                writer,
                display,
                profiler,
                stop_after,
                evaluation_left=unevaluated and first > phase.first,
            )
            try:
                state = loop.train(state)
            finally:
                profiler.close(loop.done)
        with job.clock.activity("save"):
            checkpoints.wait()
        if left:
            _finish(run, writer, left[-1])


def _announce(run: RunContext, left: list[RunPhase], first: int) -> None:
    if first:
        what = "resumes from" if left else "finished already, at"
        logger.info(f"{what} step {first} in {run.folder}")
    if left:
        logger.info("compiling")


def _record_start(run: RunContext, writer: MetricWriter, phase: RunPhase, first: int) -> None:
    writer.event(
        "start",
        first,
        phase.index,
        processes=run.job.peers.num_processes,
        hosts=list(run.job.peers.hosts),
        devices=run.mesh.size,
        versions=versions(),
        seconds=run.job.clock.seconds(),
    )


def _finish(run: RunContext, writer: MetricWriter, phase: RunPhase) -> None:
    """Records the end of the run and prints where its time went."""
    run.store.files.check()
    seconds = run.job.clock.seconds()
    writer.event("finished", run.config.total_steps, phase.index, seconds=seconds)
    if not run.job.peers.is_first:
        return
    try:
        found = list(records.records(run.folder / records.LOG))
    except UserError as error:  # everything is saved; only this summary is lost
        logger.warning(str(error))
        return
    logger.info(goodput.render(goodput.account(found)))
