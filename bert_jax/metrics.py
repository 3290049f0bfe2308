"""Where numbers go: JSON lines, TensorBoard; and what a step costs in floating-point operations."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import tensorboardX
from etils import epath

from bert_jax.config import ModelConfig, PhaseConfig
from bert_jax.objectives import summarize


class MetricWriter:
    """Appends scalars to `metrics.jsonl` and to TensorBoard event files; one process writes."""

    def __init__(self, workdir: epath.Path, first_step: int):
        """first_step: of this start; TensorBoard drops what a lost stretch had written."""
        self._active = jax.process_index() == 0
        if self._active:
            workdir.mkdir(parents=True, exist_ok=True)
            self._lines = (workdir / "metrics.jsonl").open("a")
            folder = str(workdir / "tensorboard")
            self._events = tensorboardX.SummaryWriter(folder, purge_step=first_step)

    def write(self, kind: str, step: int, scalars: Mapping[str, float]) -> None:
        """kind: "train" or "eval"; step: how many updates the parameters have seen."""
        if not self._active:
            return
        record = {"kind": kind, "step": step, "time": time.time(), **scalars}
        self._lines.write(json.dumps(record) + "\n")
        self._lines.flush()
        for name, value in scalars.items():
            self._events.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        if self._active:
            self._lines.close()
            self._events.close()


def read(workdir: epath.Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind by step; where a stretch was repeated after a restart, its last."""
    by_step: dict[int, dict[str, Any]] = {}
    for record in _records(workdir / "metrics.jsonl"):
        if record["kind"] == kind:
            by_step[record["step"]] = record
    return [by_step[step] for step in sorted(by_step)]


def _records(path: epath.Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:  # the last line of a killed process may be cut
            continue


class Totals:
    """Adds up trees of numbers from the devices."""

    def __init__(self) -> None:
        self.sums: Any = None

    def add(self, tree: Any) -> None:
        tree = jax.tree.map(np.asarray, tree)
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


def step_flops(model: ModelConfig, phase: PhaseConfig) -> float:
    """Floating-point operations of one training step, matrix products only, padding included.

    Forward plus backward is three times the forward pass; a product of [m, k] and [k, n] is 2mkn.
    """
    H, I = model.hidden_size, model.intermediate_size  # noqa: E741
    tokens = phase.batch_size * phase.seq_length
    layer = 2 * tokens * (4 * H * H + 2 * H * I) + 4 * tokens * phase.seq_length * H
    slots = phase.batch_size * phase.max_predictions
    head = 2 * slots * (H * H + H * model.vocab_size) + 2 * phase.batch_size * (H * H + 2 * H)
    return 3.0 * (model.num_hidden_layers * layer + head)
