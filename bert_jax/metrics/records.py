"""What a run says of itself: JSON lines and TensorBoard; and what a step costs in operations.

Reading needs neither JAX nor TensorBoard: they load where something is written.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from etils import epath

from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.data_pipeline.storage.remote import reason
from bert_jax.errors import UserError
from bert_jax.metrics.jsonl import EventLog, read_lines

if TYPE_CHECKING:
    from bert_jax.metrics.tensorboard import ScalarEvents

LOG = "metrics.jsonl"  # of training
EVALUATIONS = "evaluations.jsonl"  # of `bert-jax evaluate`

Measured = Literal["train", "eval"]
# What happened to a run; docs/training.md lists what each record holds.
Event = Literal[
    "start",  # a process begins to train; step: the one it goes on from
    "goodput",  # seconds by activity so far
    "skipped",  # an update that was left out; step: its number from 0, as `data batch` takes it
    "quarantined",  # a checkpoint that is damaged or of another run was set aside
    "adopted",  # a checkpoint of another run was taken into this one
    "save_failed",
    "stopped",
    "lost",
    "finished",
]


class MetricWriter:
    """Appends records to `metrics.jsonl`, and what was measured to TensorBoard event files.

    Nothing here ends a run: what cannot be written is said once. One process writes, the first.
    """

    def __init__(self, workdir: epath.Path):
        import jax

        self._active = jax.process_index() == 0
        self._lines = EventLog(workdir / LOG)
        self._folder = workdir / "tensorboard"
        self._curves: ScalarEvents | None = None  # one file for each start, from the first scalar
        self._first_step = 0

    def write(self, kind: Measured, step: int, phase: int, scalars: Mapping[str, Any]) -> None:
        """step: how many updates the parameters have seen, the last in `config.phases[phase]`.

        Values that are no numbers (names, lists) are for the file alone.
        """
        self._record(kind, step, phase, scalars)
        if self._active:
            numbers = {
                f"{kind}/{name}": float(value)
                for name, value in scalars.items()
                if _is_number(value)
            }
            if self._curves is None:
                from bert_jax.metrics.tensorboard import ScalarEvents

                self._curves = ScalarEvents(self._folder, self._first_step)
            self._curves.write(step, numbers)

    def event(self, kind: Event, step: int, phase: int, **values: Any) -> None:
        """Writes that something happened; `step` and `phase` as in `write`, unless `Event` says so.

        values: numbers, text, and lists and dicts of these.
        """
        if kind == "start":
            self._first_step = step
        self._record(kind, step, phase, values)

    def close(self) -> None:
        self._lines.close()
        if self._curves is not None:
            self._curves.close()

    def _record(self, kind: str, step: int, phase: int, values: Mapping[str, Any]) -> None:
        if self._active:
            self._lines.append(line(kind, step, phase, values))


def line(kind: str, step: int, phase: int, values: Mapping[str, Any]) -> str:
    """A record as it stands in a file: strict JSON, null for a number that is not finite."""
    record = {"kind": kind, "step": step, "phase": phase, "time": time.time(), **values}
    return json.dumps(strict(record), allow_nan=False) + "\n"


def strict(value: Any) -> Any:
    """The same for JSON: NumPy's numbers as Python's, None for those that are not finite."""
    if isinstance(value, Mapping):
        return {str(name): strict(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [strict(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    return value if not isinstance(value, float) or math.isfinite(value) else None


def read(workdir: epath.Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind by step; of a stretch that was done again, the last."""
    by_step: dict[int, dict[str, Any]] = {}
    for record in records(workdir / LOG):
        if record["kind"] == "start":
            by_step = {step: old for step, old in by_step.items() if step <= record["step"]}
        if record["kind"] == kind:
            by_step[record["step"]] = record
    return [by_step[step] for step in sorted(by_step)]


def records(path: epath.Path) -> Iterator[dict[str, Any]]:
    """Every whole record of a file, in the order written; none where there is no file.

    Numbers that were not finite, null in the file, are NaN again.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        lines = list(read_lines(path))
    except Exception as error:  # of the disk, or of what reads from buckets
        raise UserError(f"{path}: cannot be read ({reason(error)})") from error
    for one in lines:
        try:
            record = json.loads(one)
        except (ValueError, RecursionError):  # cut by a kill, or damaged
            continue
        if isinstance(record, dict) and isinstance(record.get("kind"), str):
            step = record.get("step")
            if isinstance(step, int) and not isinstance(step, bool) and step >= 0:
                yield {name: math.nan if v is None else v for name, v in record.items()}


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether a value in a record is a finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # whole numbers have no limit
        return False


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, bool)


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
