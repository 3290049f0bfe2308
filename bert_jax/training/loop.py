"""The training loop: batch → step → metrics → evaluate → save, phase by phase.

The data state is the step. All processes of a job run this loop alike; process 0 alone writes.
"""

import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NoReturn

import jax
from etils import epath

from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.batch import prefetch
from bert_jax.distributed import job as session
from bert_jax.distributed.job import Job
from bert_jax.distributed.preemption import StopRequestedError
from bert_jax.errors import NUMBERS, STOPPED, NumbersError, StoppedError, UserError
from bert_jax.metrics import goodput, stragglers
from bert_jax.metrics import records as metrics
from bert_jax.metrics.records import Event
from bert_jax.metrics.step_metrics import SkippedStep
from bert_jax.metrics.time_left import seconds_left
from bert_jax.metrics.writer import MetricWriter
from bert_jax.runtime.console import console
from bert_jax.runtime.versions import versions
from bert_jax.training import claim, skip_nonfinite
from bert_jax.training.profiling import Profiler, Steps
from bert_jax.training.progress import RunDisplay
from bert_jax.training.setup import CompiledPhase, RunContext, RunPhase, compile_phase, prepare
from bert_jax.training.step import State
from bert_jax.workdir import description, identity, lock


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
    """Trains until `config.total_steps`, from the newest good checkpoint in the folder if any.

    Args:
        folder: the workdir; may be a bucket.
        job: this process's part in a job; by default there is this process alone.
        stop_after: stop (and save) at this step, as if interrupted there.
        strict_restore: stop at a damaged checkpoint, or one of another run, instead of setting it
            aside and going on from an older one.
        adopt: take checkpoints of other runs that are there into this run.
        profile: steps to trace.

    Raises:
        UserError: the store, the configuration and the folder do not fit together.
        StoppedError: interrupted; everything is saved.
        NumbersError: too many losses or gradients in a row are not finite; everything is saved.
        StorageError: a checkpoint cannot be written, none that is there is good, or the store
            changed while it was in use.
    """
    with contextlib.ExitStack() as stack:
        job = job or stack.enter_context(session.in_process_job(config))
        if profile:
            profile.check(config.total_steps)
        run = prepare(config, epath.Path(folder), job)
        if job.peers.is_first:
            stack.enter_context(lock.lock(run.folder))
        writer = stack.enter_context(closing(MetricWriter(run.folder)))
        run, known = _claim(run, writer, adopt)
        checkpoints = RunCheckpoints(
            run.folder,
            config.checkpoint,
            config.phase_ends,
            exchange=job.peers.all_gather_text,
            tell=functools.partial(_note_checkpoint, writer, run),
        )
        stack.enter_context(_closing(checkpoints, job))
        stack.enter_context(jax.set_mesh(run.mesh))
        state, unevaluated = _begin(run, checkpoints, strict_restore, known)
        first = job.clock.step = int(state["step"])
        left = [s for s in run.stages if s.last > first or (s.last == first and unevaluated)]
        if first:
            says = "goes on from" if left else "finished already, at"
            console.print(f"{says} step {first} in {run.folder}", markup=False)
        stack.enter_context(_noting_end(writer, job))
        if left:  # a run that is finished has no more attempts
            writer.event(
                "start",
                first,
                left[0].index,
                processes=job.peers.num_processes,
                hosts=list(job.peers.hosts),
                devices=run.mesh.size,
                versions=versions(),
                seconds=job.clock.seconds(),
            )
            console.print("compiling")
        compiled = [compile_phase(run, stage, first) for stage in left]
        # On CPUs the first sum over all processes waits for the slowest for 30 s, no longer.
        job.peers.all_gather_text("compiled")
        display = stack.enter_context(RunDisplay(config.total_steps, first, len(run.stages)))
        profiler = Profiler(run.folder, profile if job.peers.is_first else None)
        for stage, programs in zip(left, compiled, strict=True):
            loop = _Loop(
                run,
                stage,
                programs,
                checkpoints,
                writer,
                display,
                profiler,
                stop_after,
                evaluation_left=unevaluated and first > stage.first,
            )
            try:
                state = loop.train(state)
            finally:
                profiler.close(loop.done)
        with job.clock.activity("save"):
            checkpoints.wait()
        if left:
            run.store.files.check()
            seconds = job.clock.seconds()
            writer.event("finished", config.total_steps, left[-1].index, seconds=seconds)
            if job.peers.is_first:
                _report_time(run)


def _claim(run: RunContext, writer: MetricWriter, adopt: bool) -> tuple[RunContext, dict[str, Any]]:
    """The run with its id, and what tells its checkpoints from others, see `workdir.begin`.

    The workdir is the run's from here on; before, nothing in it was changed.
    """
    said = ""
    if run.job.peers.is_first:
        known, adopted = claim.begin(run.folder, run.description, adopt=adopt)
        said = json.dumps(known)
        for one in adopted:
            step, why = one["step"], one["why"]
            console.print(f"adopts the checkpoint of step {step}, {why}", markup=False)
            about = {"run_id": one["run_id"], "reason": why}
            _note_checkpoint(writer, run, "adopted", step, about)
    known = json.loads(run.job.peers.all_gather_text("run", said)[0])
    own = {name: value for name, value in known.items() if name in ("run_id", "adopted")}
    return dataclasses.replace(run, description=run.description | own), known


def _begin(
    run: RunContext, checkpoints: RunCheckpoints, strict: bool, known: dict[str, Any]
) -> tuple[State, bool]:
    """The state to go on from, and whether the evaluation of it, which was stopped, is left to do.

    known: what tells the run's checkpoints, see `workdir.begin`.
    """
    job, abstract = run.job, run.program.abstract
    with job.clock.activity("compile"):
        checkpoints.prepare(abstract)
    with job.clock.activity("restore"):
        foreign = functools.partial(identity.foreign, run=known)
        found = checkpoints.restore_newest(abstract, strict=strict, foreign=foreign)
    step = found[1]["step"] if found else None
    if found and not identity.is_adopted(found[1], known):
        identity.check(run.folder, found[1], run.description, found[1]["step"])
    if job.peers.is_first:
        for change in claim.claim(run.folder, run.description, resuming_at=step):
            console.print(change, markup=False)
        description.keep_tokenizer(run.folder, run.store)
    if found is None:
        return run.program.init(), False
    state, meta = found
    state = skip_nonfinite.reset_if_latched(state, run.config.optimizer.max_nonfinite_steps)
    return state, meta["evaluation"] is None


def _note_checkpoint(
    writer: MetricWriter, run: RunContext, kind: Event, step: int, details: dict[str, Any]
) -> None:
    """What happened to a checkpoint."""
    phase, _ = run.config.phase_at(min(max(step, 1), run.config.total_steps) - 1)
    writer.event(kind, step, phase, **details)


@contextlib.contextmanager
def _closing(checkpoints: RunCheckpoints, job: Job) -> Iterator[None]:
    """Whatever ends the run, what is still being written has the time of a save, and no more."""
    try:
        yield
    finally:
        with job.clock.activity("save"):
            checkpoints.close()


@contextlib.contextmanager
def _noting_end(writer: MetricWriter, job: Job) -> Iterator[None]:
    """The last record of a process that has none of its own when it is ended."""

    def note(code: int, line: str) -> None:
        seconds = job.clock.seconds()
        kind: Event = "stopped" if code == STOPPED else "lost"
        writer.event(kind, job.clock.step, 0, code=code, reason=line, seconds=seconds)

    job.before_end.append(note)
    with contextlib.ExitStack() as stack:
        stack.callback(job.before_end.remove, note)
        try:
            yield
        except (StoppedError, NumbersError):  # noted where they were raised
            raise
        except BaseException:
            stack.pop_all()
            raise


def _report_time(run: RunContext) -> None:
    """Says where the time of the run went."""
    try:
        records = list(metrics.records(run.folder / metrics.LOG))
    except UserError as error:  # all is saved: nothing is lost but these lines
        console.print(f"warning: {error}", markup=False)
        return
    console.print(goodput.render(goodput.account(records)))


@dataclasses.dataclass
class _Loop:
    """What is left of a phase."""

    run: RunContext
    stage: RunPhase
    programs: CompiledPhase
    checkpoints: RunCheckpoints
    writer: MetricWriter
    display: RunDisplay
    profiler: Profiler
    stop_after: int | None
    evaluation_left: bool  # the state has not been evaluated yet, if it is to be
    done: int = 0  # updates, of the whole run
    evaluated: dict[str, float] | None = None  # held-out figures after the last of them

    def __post_init__(self) -> None:
        job = self.run.job
        self.config, self.peers, self.clock, self.preemption = (
            self.run.config,
            job.peers,
            job.clock,
            job.preemption,
        )
        self.report = self.run.report(self.stage.phase)
        self.stretch = stragglers.StepTimer(job.peers.hosts[job.peers.process_id])

    def train(self, state: State) -> State:
        """From the state at the start, or wherever the phase was left, to that at its end."""
        stage = self.stage
        first = self.done = int(state["step"])
        if first == stage.first and self.programs.start_phase:
            # The checkpoint at the end of a phase is from before this: it is done once either way.
            state = self.programs.start_phase(state)
        self.display.phase(stage.index, stage)
        make = functools.partial(self.run.batch, stage)
        prepared = prefetch(make, first, stage.last, while_waiting=self.preemption.check)
        try:
            # Stopped in the evaluation after this step: it is done now, and noted where it was not.
            if self.evaluation_left and self._due(self.config.evaluation.every_steps):
                evaluated = self._evaluate(state)
                with self.clock.activity("save"):
                    self.checkpoints.note_evaluation(first, evaluated)
            with closing(prepared) as batches:
                while self.done < stage.last:
                    began = time.perf_counter()
                    with self.clock.activity("data"):
                        step, batch = next(batches)
                    waited = time.perf_counter() - began
                    self.preemption.begin()
                    with self.clock.activity("step"):
                        state, numbers = self.profiler.run(step, self.programs.train, state, batch)
                        began = time.perf_counter()
                        self.report.add(numbers, step)
                        self.stretch.add(data=waited, device=time.perf_counter() - began)
                        self.done = self.clock.step = step + 1
                        self._check_numbers(state)
                    self._after_step(state)
                    if self.done == self.stop_after != self.config.total_steps:
                        raise StopRequestedError
        except StopRequestedError:
            self._stop(state)
        return state

    def _due(self, every: int) -> bool:
        return self.done % every == 0 or self.done == self.stage.last

    def _check_numbers(self, state: State) -> None:
        """Notes steps that were skipped; ends the run where they were too many in a row."""
        config = self.config
        everys = (
            config.log_every_steps,
            config.evaluation.every_steps,
            config.checkpoint.every_steps,
        )
        # Where the host waits for the step anyway, it is told of it at once.
        told = self.report.skipped(wait=any(map(self._due, everys)))
        end = next((s for s in told if s.in_row >= config.optimizer.max_nonfinite_steps), None)
        self._note_skipped(told + (self.report.skipped(wait=True) if end else []))
        if end:
            line = end.stop(self.run.folder, self.done)
            self._end(state, NUMBERS, line)
            raise NumbersError(line)

    def _note_skipped(self, told: list[SkippedStep]) -> None:
        for skipped in told:
            in_row = skipped.in_row
            self.writer.event("skipped", skipped.step, self.stage.index, in_row=in_row)
            console.print(str(skipped), markup=False)

    def _after_step(self, state: State) -> None:
        """Reports, evaluates and saves where it is time to."""
        config, self.evaluated = self.config, None
        self.display.advance(self.done)
        if self._due(config.log_every_steps):
            self._log()
        if self._due(config.evaluation.every_steps):
            with self.report.paused():
                self._evaluate(state)
            self._note_time()
        if self._due(config.checkpoint.every_steps):
            with self.report.paused():
                self._save(state)
            self._note_time()

    def _log(self) -> None:
        self.checkpoints.check()
        scalars = self.report.take()
        mine = self.stretch.take(scalars["step_seconds"]).text()
        times = [
            stragglers.HostTimes.parse(text) for text in self.peers.all_gather_text("times", mine)
        ]
        found = stragglers.fields(times)
        self.writer.write("train", self.done, self.stage.index, scalars | found)
        self._note_time()
        operations = self.run.description["step_flops"]
        left = seconds_left(self.config, self.done, scalars["step_seconds"], operations)
        self.display.train(self.done, scalars, left)
        for line in found.get("hosts/stragglers", []):
            console.print(line, markup=False)

    def _note_time(self) -> None:
        seconds = self.clock.seconds()
        self.writer.event("goodput", self.done, self.stage.index, seconds=seconds)

    def _evaluate(self, state: State) -> dict[str, float]:
        """Held-out figures; raises StopRequestedError where all agreed to stop in between."""
        with self.clock.activity("evaluate"):
            evaluated = self.stage.held_out.evaluate(
                self.run.program,
                state["params"],
                lambda tokens: self.clock.progress(),
                compiled=self.programs.evaluate,
                begin=self.preemption.begin,
                while_waiting=self.preemption.check,
            )
        self.run.store.files.check()
        self.writer.write("eval", self.done, self.stage.index, evaluated)
        self.display.evaluation(self.done, evaluated)
        self.evaluated = evaluated
        return evaluated

    def _save(self, state: State) -> None:
        self.run.store.files.check()  # what was trained on garbage is not kept
        with self.clock.activity("save"):
            self.checkpoints.save(
                state, self.run.description, phase=self.stage.index, evaluation=self.evaluated
            )

    def _stop(self, state: State) -> NoReturn:
        """Saves and ends the run here."""
        self._note_skipped(self.report.skipped(wait=True))
        self._end(state, STOPPED, self.preemption.why)
        raise StoppedError(f"saved step {self.done} in {self.run.folder}; the same command goes on")

    def _end(self, state: State, code: int, reason: str) -> None:
        """Saves before the run's end, waits until it is written, and notes why it ends."""
        self._save(state)
        with self.clock.activity("save"):
            self.checkpoints.wait()
        self.peers.all_gather_text("saved")  # whoever ends now with an error ends process 0 as well
        seconds = self.clock.seconds()
        self.writer.event(
            "stopped", self.done, self.stage.index, reason=reason, code=code, seconds=seconds
        )
