"""The parts of the training loop in one phase: batches, step, metrics, evaluation, saving."""

import dataclasses
import functools
import time
from collections.abc import Generator
from typing import NoReturn

from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.data_pipeline.batch import prefetch
from bert_jax.errors import NumbersError, StoppedError
from bert_jax.exit_codes import NUMBERS, STOPPED
from bert_jax.metrics import stragglers
from bert_jax.metrics.step_metrics import SkippedStep
from bert_jax.metrics.time_left import seconds_left
from bert_jax.metrics.writer import MetricWriter
from bert_jax.parallel.global_batch import Batch
from bert_jax.runtime.log import logger
from bert_jax.training.profiling import Profiler
from bert_jax.training.progress import RunDisplay
from bert_jax.training.setup import CompiledPhase, RunContext, RunPhase
from bert_jax.training.state_sharding import State

StepBatches = Generator[tuple[int, Batch]]


@dataclasses.dataclass
class PhaseTrainer:
    """A phase in training; `loop._train_phase` calls its methods in order."""

    run: RunContext
    phase: RunPhase
    compiled: CompiledPhase
    checkpoints: RunCheckpoints
    writer: MetricWriter
    display: RunDisplay
    profiler: Profiler
    done: int = 0  # updates done, counted over the run
    evaluated: dict[str, float] | None = None  # held-out metrics after the last update
    waited: float = 0.0  # seconds that the last batch was waited for

    def __post_init__(self) -> None:
        job, self.config = self.run.job, self.run.config
        self.peers, self.clock, self.preemption = job.peers, job.clock, job.preemption
        self.metrics = self.run.step_metrics(self.phase.data.read)
        self.timer = stragglers.StepTimer(job.peers.hosts[job.peers.process_id])

    def start(self, state: State) -> State:
        """Returns the state at the first of the remaining steps."""
        self.done = int(state["step"])
        if self.done == self.phase.first and self.compiled.start_phase:
            # The previous phase's last checkpoint is saved before this, so this runs exactly once.
            state = self.compiled.start_phase(state)
        self.display.phase(self.phase.index, self.phase)
        return state

    def begin(self, state: State) -> None:
        """Guesses words by the initial values, measures what a task compares its metrics with, and
        saves these values, if they are to be kept."""
        with self.metrics.paused(), self.clock.activity("evaluate"):
            self._fill(state)
            self._compare(state)
        if self.config.checkpoint.keep_start:
            self.save(state)

    def repeat_evaluation(self, state: State) -> None:
        """Evaluates a restored state whose evaluation was interrupted, if one is due."""
        if self.done > self.phase.first and self.is_due(self.config.evaluation.every_steps):
            with self.metrics.paused():
                evaluated = self._evaluate_held_out(state)
                with self.clock.activity("save"):
                    self.checkpoints.note_evaluation(self.done, evaluated)

    def batches(self) -> StepBatches:
        """Yields the remaining steps and their batches, made ahead of time by a thread."""
        make = functools.partial(self.run.batch, self.phase)
        return prefetch(make, self.done, self.phase.last, while_waiting=self.preemption.check)

    def next_batch(self, batches: StepBatches) -> tuple[int, Batch]:
        """Waits for a step and its batch."""
        began = time.perf_counter()
        with self.clock.activity("data"):
            step, batch = next(batches)
        self.waited = time.perf_counter() - began
        return step, batch

    def train_step(self, step: int, state: State, batch: Batch) -> State:
        """Returns the updated state; its metrics are fetched later.

        Raises:
            StopRequestedError: all processes agreed to stop before this step.
            NumbersError: too many steps in a row were skipped; the state is saved.
        """
        self.preemption.begin()
        with self.clock.activity("step"):
            state, numbers = self.profiler.run(
                step, self.compiled.train, state, batch, *self.run.frozen
            )
            began = time.perf_counter()
            self.metrics.add(numbers, step)
            self.done = self.clock.step = step + 1
            skipped = self._skipped()
            self.timer.add(data=self.waited, device=time.perf_counter() - began)
            self._check_numbers(state, skipped)
        self.evaluated = None
        self.display.advance(self.done)
        return state

    def is_due(self, interval: int) -> bool:
        """Returns whether something due every `interval` steps, and after the last, is due now."""
        return self.done % interval == 0 or self.done == self.phase.last

    def _skipped(self) -> list[SkippedStep]:
        """Returns the skipped steps that are known; waits for the device on a step on which the
        host waits for it anyway."""
        config = self.config
        intervals = (
            config.log_every_steps,
            config.evaluation.every_steps,
            config.checkpoint.every_steps,
        )
        return self.metrics.skipped(wait=any(map(self.is_due, intervals)))

    def _check_numbers(self, state: State, skipped: list[SkippedStep]) -> None:
        """Records skipped steps; ends the run if too many in a row were skipped."""
        config = self.config
        end = next((s for s in skipped if s.in_row >= config.optimizer.max_nonfinite_steps), None)
        self._record_skipped(skipped + (self.metrics.skipped(wait=True) if end else []))
        if end:
            line = end.stop(self.run.workdir, self.done, task=config.task.name)
            self._end(state, NUMBERS, line)
            raise NumbersError(line)

    def _record_skipped(self, skipped: list[SkippedStep]) -> None:
        for step in skipped:
            self.writer.event("skipped", step.step, self.phase.index, in_row=step.in_row)
            logger.info(str(step))

    def log(self) -> None:
        """Writes and shows the metrics since the last call."""
        self.checkpoints.check()
        scalars = self.metrics.take()
        own = self.timer.take(scalars["step_seconds"]).text()
        times = [
            stragglers.HostTimes.parse(text) for text in self.peers.all_gather_text("times", own)
        ]
        host_fields = stragglers.fields(times)
        self.writer.write("train", self.done, self.phase.index, scalars | host_fields)
        self._record_time()
        operations = self.run.description["step_flops"]
        left = seconds_left(self.config, self.done, scalars["step_seconds"], operations)
        self.display.train(self.done, scalars, left)
        for line in host_fields.get("hosts/stragglers", []) if self.peers.is_first else ():
            logger.warning(line)

    def _record_time(self) -> None:
        self.writer.event("goodput", self.done, self.phase.index, seconds=self.clock.seconds())

    def evaluate(self, state: State) -> None:
        """Writes and shows held-out metrics.

        Raises:
            StopRequestedError: all processes agreed to stop.
        """
        with self.metrics.paused():
            self._evaluate_held_out(state)
        self._record_time()

    def _evaluate_held_out(self, state: State) -> dict[str, float]:
        with self.clock.activity("evaluate"):
            evaluated = self.phase.data.held_out.evaluate(
                self.run.program,
                state["params"],
                lambda tokens: self.clock.progress(),
                compiled=self.compiled.evaluate,
                begin=self.preemption.begin,
                while_waiting=self.preemption.check,
            )
            self._fill(state)
        self.run.data.check()
        self.writer.write("eval", self.done, self.phase.index, evaluated)
        self.display.evaluation(self.done, evaluated)
        self.evaluated = evaluated
        return evaluated

    def _fill(self, state: State) -> None:
        """Writes what the parameters guess for the hidden words, if there are any."""
        if fills := self.run.fills:
            self.clock.progress()
            guesses = fills.guesses(
                self.phase.data.held_out, self.run.program, state["params"], self.compiled.evaluate
            )
            self.writer.fills(self.done, self.phase.index, fills.sentences, guesses)

    def _compare(self, state: State) -> None:
        """Writes and shows what the metrics of a task are compared with, if there is something."""

        def begin() -> None:
            self.preemption.begin()
            self.clock.progress()

        if beside := self.phase.data.held_out.before_training(state["params"], begin):
            self.writer.event("compared", self.done, self.phase.index, beside=beside)
            self.display.compared(beside)

    def save(self, state: State) -> None:
        """Saves the state in the background."""
        with self.metrics.paused():
            self._save_checkpoint(state)
        self._record_time()

    def _save_checkpoint(self, state: State) -> None:
        self.run.data.check()  # never save a state trained on corrupted data
        with self.clock.activity("save"):
            self.checkpoints.save(
                state, self.run.description, phase=self.phase.index, evaluation=self.evaluated
            )

    def stop(self, state: State) -> NoReturn:
        """Saves the state and stops the run, as all processes agreed."""
        self._record_skipped(self.metrics.skipped(wait=True))
        self._end(state, STOPPED, self.preemption.why)
        raise StoppedError(
            f"saved step {self.done} in {self.run.workdir}; run the same command again to resume"
        )

    def _end(self, state: State, code: int, reason: str) -> None:
        """Saves, waits until the checkpoint is written and records why the run ends."""
        self._save_checkpoint(state)
        with self.clock.activity("save"):
            self.checkpoints.wait()
        # A barrier: a process that exits with an error before this would end process 0 as well.
        self.peers.all_gather_text("saved")
        seconds = self.clock.seconds()
        self.writer.event(
            "stopped", self.done, self.phase.index, reason=reason, code=code, seconds=seconds
        )
