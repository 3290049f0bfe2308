"""The training loop of one phase: batch → step → metrics → evaluate → save."""

import dataclasses
import functools
import time
from contextlib import closing
from typing import NoReturn

from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.data_pipeline.batch import prefetch
from bert_jax.distributed.preemption import StopRequestedError
from bert_jax.errors import NUMBERS, STOPPED, NumbersError, StoppedError
from bert_jax.metrics import stragglers
from bert_jax.metrics.step_metrics import SkippedStep
from bert_jax.metrics.time_left import seconds_left
from bert_jax.metrics.writer import MetricWriter
from bert_jax.runtime.log import logger
from bert_jax.training.profiling import Profiler
from bert_jax.training.progress import RunDisplay
from bert_jax.training.setup import CompiledPhase, RunContext, RunPhase
from bert_jax.training.state_sharding import State


@dataclasses.dataclass
class PhaseLoop:
    """Runs the remaining steps of a phase."""

    run: RunContext
    phase: RunPhase
    compiled: CompiledPhase
    checkpoints: RunCheckpoints
    writer: MetricWriter
    display: RunDisplay
    profiler: Profiler
    stop_after: int | None
    evaluation_left: bool  # the restored state has no evaluation yet; run it if one is due
    done: int = 0  # updates done, counted over the run
    evaluated: dict[str, float] | None = None  # held-out metrics after the last update

    def __post_init__(self) -> None:
        job = self.run.job
        self.config, self.peers, self.clock, self.preemption = (
            self.run.config,
            job.peers,
            job.clock,
            job.preemption,
        )
        self.metrics = self.run.step_metrics(self.phase.config)
        self.timer = stragglers.StepTimer(job.peers.hosts[job.peers.process_id])

    def train(self, state: State) -> State:
        """Trains to the end of the phase from the step of the state; returns the new state."""
        phase = self.phase
        first = self.done = int(state["step"])
        if first == phase.first and self.compiled.start_phase:
            # The previous phase's last checkpoint is saved before this, so this runs exactly once.
            state = self.compiled.start_phase(state)
        self.display.phase(phase.index, phase)
        make = functools.partial(self.run.batch, phase)
        prepared = prefetch(make, first, phase.last, while_waiting=self.preemption.check)
        try:
            # The run was stopped during the evaluation after this step: repeat and record it.
            if self.evaluation_left and self._due(self.config.evaluation.every_steps):
                evaluated = self._evaluate(state)
                with self.clock.activity("save"):
                    self.checkpoints.note_evaluation(first, evaluated)
            with closing(prepared) as batches:
                while self.done < phase.last:
                    began = time.perf_counter()
                    with self.clock.activity("data"):
                        step, batch = next(batches)
                    waited = time.perf_counter() - began
                    self.preemption.begin()
                    with self.clock.activity("step"):
                        state, numbers = self.profiler.run(step, self.compiled.train, state, batch)
                        began = time.perf_counter()
                        self.metrics.add(numbers, step)
                        self.timer.add(data=waited, device=time.perf_counter() - began)
                        self.done = self.clock.step = step + 1
                        self._check_numbers(state)
                    self._after_step(state)
                    if self.done == self.stop_after != self.config.total_steps:
                        raise StopRequestedError
        except StopRequestedError:
            self._stop(state)
        return state

    def _due(self, every: int) -> bool:
        return self.done % every == 0 or self.done == self.phase.last

    def _check_numbers(self, state: State) -> None:
        """Records skipped steps; ends the run if too many in a row were skipped."""
        config = self.config
        intervals = (
            config.log_every_steps,
            config.evaluation.every_steps,
            config.checkpoint.every_steps,
        )
        # Wait for this step's result only if the host blocks on the step anyway.
        found = self.metrics.skipped(wait=any(map(self._due, intervals)))
        end = next((s for s in found if s.in_row >= config.optimizer.max_nonfinite_steps), None)
        self._record_skipped(found + (self.metrics.skipped(wait=True) if end else []))
        if end:
            line = end.stop(self.run.folder, self.done)
            self._end(state, NUMBERS, line)
            raise NumbersError(line)

    def _record_skipped(self, found: list[SkippedStep]) -> None:
        for skipped in found:
            in_row = skipped.in_row
            self.writer.event("skipped", skipped.step, self.phase.index, in_row=in_row)
            logger.info(str(skipped))

    def _after_step(self, state: State) -> None:
        """Logs, evaluates and saves if due at this step."""
        config, self.evaluated = self.config, None
        self.display.advance(self.done)
        if self._due(config.log_every_steps):
            self._log()
        if self._due(config.evaluation.every_steps):
            with self.metrics.paused():
                self._evaluate(state)
            self._record_time()
        if self._due(config.checkpoint.every_steps):
            with self.metrics.paused():
                self._save(state)
            self._record_time()

    def _log(self) -> None:
        self.checkpoints.check()
        scalars = self.metrics.take()
        mine = self.timer.take(scalars["step_seconds"]).text()
        times = [
            stragglers.HostTimes.parse(text) for text in self.peers.all_gather_text("times", mine)
        ]
        found = stragglers.fields(times)
        self.writer.write("train", self.done, self.phase.index, scalars | found)
        self._record_time()
        operations = self.run.description["step_flops"]
        left = seconds_left(self.config, self.done, scalars["step_seconds"], operations)
        self.display.train(self.done, scalars, left)
        for line in found.get("hosts/stragglers", []) if self.peers.is_first else ():
            logger.warning(line)

    def _record_time(self) -> None:
        seconds = self.clock.seconds()
        self.writer.event("goodput", self.done, self.phase.index, seconds=seconds)

    def _evaluate(self, state: State) -> dict[str, float]:
        """Returns held-out metrics.

        Raises:
            StopRequestedError: all processes agreed to stop.
        """
        with self.clock.activity("evaluate"):
            evaluated = self.phase.held_out.evaluate(
                self.run.program,
                state["params"],
                lambda tokens: self.clock.progress(),
                compiled=self.compiled.evaluate,
                begin=self.preemption.begin,
                while_waiting=self.preemption.check,
            )
        self.run.store.files.check()
        self.writer.write("eval", self.done, self.phase.index, evaluated)
        self.display.evaluation(self.done, evaluated)
        self.evaluated = evaluated
        return evaluated

    def _save(self, state: State) -> None:
        self.run.store.files.check()  # never save a state trained on corrupted data
        with self.clock.activity("save"):
            self.checkpoints.save(
                state, self.run.description, phase=self.phase.index, evaluation=self.evaluated
            )

    def _stop(self, state: State) -> NoReturn:
        """Saves the state and stops the run."""
        self._record_skipped(self.metrics.skipped(wait=True))
        self._end(state, STOPPED, self.preemption.why)
        raise StoppedError(
            f"saved step {self.done} in {self.run.folder}; run the same command again to resume"
        )

    def _end(self, state: State, code: int, reason: str) -> None:
        """Saves, waits until the checkpoint is written and records why the run ends."""
        self._save(state)
        with self.clock.activity("save"):
            self.checkpoints.wait()
        # A barrier: a process that exits with an error before this would end process 0 as well.
        self.peers.all_gather_text("saved")
        seconds = self.clock.seconds()
        self.writer.event(
            "stopped", self.done, self.phase.index, reason=reason, code=code, seconds=seconds
        )
