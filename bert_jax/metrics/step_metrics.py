"""From the sums that steps leave on the devices to the scalars of a stretch of steps."""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from bert_jax.objectives.total import summarize


class SumAccumulator:
    """Adds up trees of numbers from the devices, in float64: long sums stay exact counts."""

    def __init__(self) -> None:
        self.sums: Any = None

    def add(self, tree: Any) -> None:
        tree = jax.tree.map(lambda x: np.asarray(x, np.float64), tree)
        self.sums = tree if self.sums is None else jax.tree.map(np.add, self.sums, tree)


@dataclasses.dataclass(frozen=True)
class SkippedStep:
    """A step whose update was skipped."""

    step: int  # from 0, as `bert-jax data batch --step` counts them
    in_row: int  # skipped in a row, this one included; the limit from there on

    def __str__(self) -> str:
        return (
            f"step {self.step} skipped: its loss or gradient is not finite ({self.in_row} in a row)"
        )

    def stop(self, folder: object, saved: int) -> str:
        """Why a run ends, where this is the first step at the limit; one line.

        Args:
            folder: the workdir. saved: the step of the checkpoint in it that holds this state.
        """
        good = self.step - self.in_row + 1
        steps = f"step {good}" if good == self.step else f"steps {good} to {self.step}"
        return (
            f"{steps}: loss or gradient not finite, config.optimizer.max_nonfinite_steps="
            f"{self.in_row}; the updates were skipped, the parameters are those of step {good}, "
            f"saved as step {saved} in {folder}. `bert-jax data batch --workdir={folder} "
            f"--step={good}` rebuilds what that step saw; lower "
            "--config.optimizer.learning_rate or look at the batch before the run goes on; where "
            "it then ends the same way, an update before was too large: remove the newest folders "
            f"of {folder}/checkpoints, and it goes on from an older one"
        )


class StepMetrics:
    """Turns the metrics of a stretch of steps into scalars, and finds the steps that were skipped.

    A step's metrics are fetched when the next one has been dispatched, so that the device never
    waits for the host. They are whole on every device: every process learns the same.
    """

    def __init__(self, sources: tuple[str, ...], flops: float, peak: float | None):
        """flops: of one step; peak: of all devices in a second, None where it is not known."""
        self._sources, self._flops, self._peak = sources, flops, peak
        self._pending: tuple[int, dict[str, Any]] | None = None
        self._skipped: list[SkippedStep] = []
        self._start()

    def _start(self) -> None:
        self._losses, self._tokens = SumAccumulator(), SumAccumulator()
        self._steps = self._left_out = 0
        self._latest: dict[str, float] = {}
        self._clock = time.perf_counter()

    def add(self, metrics: dict[str, Any], step: int) -> None:
        """Takes note of a step that was dispatched. step: counted from 0 over the run."""
        self._fetch()
        self._pending = step, metrics
        self._steps += 1

    def skipped(self, *, wait: bool = False) -> list[SkippedStep]:
        """The skipped steps found since the last call, in order.

        Args:
            wait: for the step added last, too; else it is found when the next one is added.
        """
        if wait:
            self._fetch()
        found, self._skipped = self._skipped, []
        return found

    def _fetch(self) -> None:
        if self._pending is None:
            return
        step, metrics = self._pending[0], jax.device_get(self._pending[1])
        self._pending = None
        sums = dict(metrics["sums"])
        self._tokens.add({"tokens": sums.pop("tokens")})
        self._latest["learning_rate"] = float(metrics["learning_rate"])
        if metrics["skipped"]:
            self._left_out += 1
            self._skipped.append(SkippedStep(step, int(metrics["in_row"])))
        else:
            self._losses.add(sums)
            self._latest["grad_norm"] = float(metrics["grad_norm"])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done inside (evaluating, saving) does not count as time of the steps."""
        jax.block_until_ready(self._pending)
        start = time.perf_counter()
        yield
        self._clock += time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """The scalars of the stretch; a new one begins. At least one step was added before.

        Losses are those of the steps that were not skipped, and missing where all were, as is
        `grad_norm`; `skipped_steps` counts the others, where there are any. Speeds and `padding`
        are those of all steps.
        """
        self._fetch()
        seconds = time.perf_counter() - self._clock
        scalars = summarize({**(self._losses.sums or {}), **self._tokens.sums}, self._sources)
        if self._left_out == self._steps:
            del scalars["loss"]  # of no step
        scalars |= self._latest
        scalars["step_seconds"] = seconds / self._steps
        scalars["tokens_per_second"] = float(self._tokens.sums["tokens"]["real"]) / seconds
        if self._left_out:
            scalars["skipped_steps"] = self._left_out
        if self._peak:
            scalars["flops_utilization"] = self._steps * self._flops / seconds / self._peak
        self._start()
        return scalars
