"""From the sums that steps leave on the devices to the scalars of a stretch of steps."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from bert_jax.objectives import summarize


class Totals:
    """Adds up trees of numbers from the devices, in float64: long sums stay exact counts."""

    def __init__(self) -> None:
        self.sums: Any = None

    def add(self, tree: Any) -> None:
        tree = jax.tree.map(lambda x: np.asarray(x, np.float64), tree)
        self.sums = tree if self.sums is None else jax.tree.map(np.add, self.sums, tree)


class StepReport:
    """Turns the metrics of a stretch of steps into scalars.

    A step's metrics are fetched when the next one has been dispatched, so that the device never
    waits for the host.
    """

    def __init__(self, sources: tuple[str, ...], flops: float, peak: float | None):
        """flops: of one step; peak: of all devices in a second, None where it is not known."""
        self._sources, self._flops, self._peak = sources, flops, peak
        self._pending: dict[str, Any] = {}
        self._start()

    def _start(self) -> None:
        self._totals, self._steps = Totals(), 0
        self._clock = time.perf_counter()

    def add(self, metrics: dict[str, Any]) -> None:
        """Takes note of a step."""
        self._fetch()
        self._pending = metrics
        self._steps += 1

    def _fetch(self) -> None:
        if self._pending:
            self._totals.add(self._pending["sums"])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done inside (evaluating, saving) does not count as time of the steps."""
        jax.block_until_ready(self._pending)
        start = time.perf_counter()
        yield
        self._clock += time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """The scalars of the stretch; a new one begins. At least one step was added before."""
        self._fetch()
        latest, self._pending = self._pending, {}
        seconds = time.perf_counter() - self._clock
        scalars = summarize(self._totals.sums, self._sources)
        scalars |= {
            "grad_norm": float(latest["grad_norm"]),
            "learning_rate": float(latest["learning_rate"]),
            "step_seconds": seconds / self._steps,
            "tokens_per_second": float(self._totals.sums["tokens"]["real"]) / seconds,
        }
        if self._peak:
            scalars["flops_utilization"] = self._steps * self._flops / seconds / self._peak
        self._start()
        return scalars
