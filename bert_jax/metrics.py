"""Where numbers go: JSON lines, TensorBoard; and what a step costs in floating-point operations."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import tensorboardX
from etils import epath

from bert_jax.config import ModelConfig, PhaseConfig


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
    """Adds up trees of host numbers between two reports."""

    def __init__(self) -> None:
        self.sums: Any = None

    def add(self, tree: Any) -> None:
        tree = jax.tree.map(np.asarray, tree)
        self.sums = tree if self.sums is None else jax.tree.map(np.add, self.sums, tree)

    def take(self) -> Any:
        """The sums so far; starts again from nothing."""
        sums, self.sums = self.sums, None
        return sums


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
