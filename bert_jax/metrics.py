"""Where numbers go: JSON lines, TensorBoard; and what a step costs in floating-point operations.

Reading them needs neither JAX nor TensorBoard: they load where something is written.
"""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from bert_jax.config import Config, PhaseConfig
from bert_jax.event_log import EventLog, read_lines

LOG = "metrics.jsonl"  # of training
EVALUATIONS = "evaluations.jsonl"  # of `bert-jax evaluate`
STOPPED = "stopped"  # kind of the record, without figures, that an interrupted run ends with


class MetricWriter:
    """Appends scalars to `metrics.jsonl` and to TensorBoard event files; one process writes."""

    def __init__(self, workdir: epath.Path, first_step: int):
        """first_step: of this start; TensorBoard drops what a lost stretch had written."""
        import jax

        from bert_jax.scalar_events import ScalarEvents

        self._active = jax.process_index() == 0
        if self._active:
            self._lines = EventLog(workdir / LOG)
            self._events = ScalarEvents(workdir / "tensorboard", first_step)

    def write(self, kind: str, step: int, phase: int, scalars: Mapping[str, float]) -> None:
        """kind: "train", "eval" or STOPPED; step: how many updates the parameters have seen, the
        last of them in `config.phases[phase]`."""
        if not self._active:
            return
        self._lines.append(line(kind, step, phase, scalars))
        self._events.write(step, {f"{kind}/{name}": value for name, value in scalars.items()})

    def close(self) -> None:
        if self._active:
            self._lines.close()
            self._events.close()


def line(kind: str, step: int, phase: int, values: Mapping[str, Any]) -> str:
    """A record as it stands in a file."""
    record = {"kind": kind, "step": step, "phase": phase, "time": time.time(), **values}
    return json.dumps(record) + "\n"


def read(workdir: epath.Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind by step; where a stretch was repeated after a restart, its last."""
    by_step: dict[int, dict[str, Any]] = {}
    for record in records(workdir / LOG):
        if record["kind"] == kind:
            by_step[record["step"]] = record
    return [by_step[step] for step in sorted(by_step)]


def records(path: epath.Path) -> Iterator[dict[str, Any]]:
    """Every whole record of a file, in the order written; none where there is no file."""
    for text in read_lines(path):
        try:
            yield json.loads(text)
        except ValueError:  # the last line of a killed process may be cut
            continue


_SBO_POSITION = 200  # width of the relative position embeddings of the span boundary head


def step_flops(config: Config, phase: PhaseConfig) -> float:
    """Floating-point operations of one training step, matrix products only, padding included.

    Forward plus backward is three times the forward pass; a product of [m, k] and [k, n] is 2mkn.
    Splitting a batch into micro-batches changes nothing, and what rematerialization computes again
    is not counted.
    """
    model = config.model
    H, I, V = model.hidden_size, model.intermediate_size, model.vocab_size  # noqa: E741
    tokens = phase.batch_size * phase.row_tokens
    slots = phase.batch_size * phase.row_predictions
    layer = 2 * tokens * (4 * H * H + 2 * H * I) + 4 * tokens * phase.row_tokens * H
    heads = {
        "mlm": 2 * slots * (H * H + H * V),
        "sbo": 2 * slots * ((2 * H + _SBO_POSITION) * H + H * H + H * V),
    }
    pairs = 2 * phase.batch_size * phase.examples_per_row * (H * H + 2 * H)
    head = sum(heads.get(objective, pairs) for objective in config.objectives)
    return 3.0 * (model.num_hidden_layers * layer + head)


def seconds_left(config: Config, step: int, step_seconds: float) -> float:
    """What the run still takes after `step` updates, the last of which took `step_seconds`.

    Phases to come are taken to run at the same number of operations a second.
    """
    if step >= config.total_steps:
        return 0.0
    now, _ = config.phase_at(max(step - 1, 0))
    unit = step_flops(config, config.phases[now])
    index, local = config.phase_at(step)
    work = -local * step_flops(config, config.phases[index])
    work += sum(p.steps * step_flops(config, p) for p in config.phases[index:])
    return step_seconds * work / unit
