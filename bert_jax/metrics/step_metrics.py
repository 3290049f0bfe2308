"""Turns the per-step sums on the devices into the scalars of a logging interval."""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from bert_jax.objectives.total import summarize


class SumAccumulator:
    """Adds up pytrees of numbers from the devices, in float64, so that large counts stay exact."""

    def __init__(self) -> None:
        self.sums: Any = None

    def add(self, tree: Any) -> None:
        tree = jax.tree.map(lambda x: np.asarray(x, np.float64), tree)
        self.sums = tree if self.sums is None else jax.tree.map(np.add, self.sums, tree)


@dataclasses.dataclass(frozen=True)
class SkippedStep:
    """A step whose update was skipped."""

    step: int  # from 0, as for `bert-jax data batch --step`
    in_row: int  # consecutive skipped steps, this one included; at most the limit

    def __str__(self) -> str:
        return (
            f"step {self.step} skipped: its loss or gradient is not finite ({self.in_row} in a row)"
        )

    def stop(self, workdir: object, saved: int, *, task: str = "") -> str:
        """The one-line error of a run that stops because this step reached the limit.

        Args:
            saved: the step of the checkpoint in the workdir that holds this state.
            task: that the run is fine-tuned for; "" for pretraining.
        """
        good = self.step - self.in_row + 1
        steps = f"step {good}" if good == self.step else f"steps {good} to {self.step}"
        show, inspect = "", ""
        if not task:
            command = f"`bert-jax data batch --workdir={workdir} --step={good}`"
            show, inspect = f"{command} shows the batch of that step; ", "or inspect the batch, "
        return (
            f"{steps}: loss or gradient not finite, config.optimizer.max_nonfinite_steps="
            f"{self.in_row}; the updates were skipped, the parameters of step {good} are "
            f"saved as step {saved} in {workdir}. {show}lower "
            f"--config.optimizer.learning_rate {inspect}then run the same command again to resume; "
            "if it stops the same way, an earlier update was too large: remove "
            f"the newest folders of {workdir}/checkpoints to resume from an older one"
        )


class StepMetrics:
    """Turns the metrics of a logging interval into scalars, and reports the skipped steps.

    A step's metrics are fetched after the next one was dispatched, so that the device never waits
    for the host. They are replicated on every device: every process gets the same.
    """

    def __init__(self, sources: tuple[str, ...], flops: float, peak: float | None):
        """flops: of one step; peak: FLOP/s of all devices together, None if unknown."""
        self._sources, self._flops, self._peak = sources, flops, peak
        self._pending: tuple[int, dict[str, Any]] | None = None
        self._skipped: list[SkippedStep] = []
        self._start()

    def _start(self) -> None:
        self._losses, self._tokens = SumAccumulator(), SumAccumulator()
        self._steps = self._num_skipped = 0
        self._latest: dict[str, float] = {}
        self._clock = time.perf_counter()

    def add(self, metrics: dict[str, Any], step: int) -> None:
        """Adds the metrics of a dispatched step. step: counted from 0 over the run."""
        self._fetch()
        self._pending = step, metrics
        self._steps += 1

    def skipped(self, *, wait: bool = False) -> list[SkippedStep]:
        """The skipped steps since the last call, in order.

        wait: also for the step added last; otherwise it is checked when the next one is added.
        """
        if wait:
            self._fetch()
        skipped, self._skipped = self._skipped, []
        return skipped

    def _fetch(self) -> None:
        if self._pending is None:
            return
        step, metrics = self._pending[0], jax.device_get(self._pending[1])
        self._pending = None
        sums = dict(metrics["sums"])
        self._tokens.add({"tokens": sums.pop("tokens")})
        self._latest["learning_rate"] = float(metrics["learning_rate"])
        if metrics["skipped"]:
            self._num_skipped += 1
            self._skipped.append(SkippedStep(step, int(metrics["in_row"])))
        else:
            self._losses.add(sums)
            self._latest["grad_norm"] = float(metrics["grad_norm"])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the time inside the context (evaluation, saving) from the step time."""
        jax.block_until_ready(self._pending)
        start = time.perf_counter()
        yield
        self._clock += time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """Returns the scalars of the interval and starts a new one; needs at least one step.

        Losses cover the steps that were not skipped; they and `grad_norm` are missing if all were.
        `skipped_steps` counts skipped steps, if any. Speeds, `padding` and the MFU,
        `flops_utilization`, cover all steps.
        """
        self._fetch()
        seconds = time.perf_counter() - self._clock
        scalars = summarize({**(self._losses.sums or {}), **self._tokens.sums}, self._sources)
        if self._num_skipped == self._steps:
            del scalars["loss"]  # all steps were skipped
        scalars |= self._latest
        scalars["step_seconds"] = seconds / self._steps
        scalars["tokens_per_second"] = float(self._tokens.sums["tokens"]["real"]) / seconds
        if self._num_skipped:
            scalars["skipped_steps"] = self._num_skipped
        if self._peak:
            scalars["flops_utilization"] = self._steps * self._flops / seconds / self._peak
        self._start()
        return scalars
