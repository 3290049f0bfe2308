"""What a run says of itself: JSON lines and TensorBoard; and what a step costs in operations.

Reading needs neither JAX nor TensorBoard: they load where something is written.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from etils import epath

from bert_jax.data_pipeline.storage.remote import reason
from bert_jax.errors import UserError
from bert_jax.metrics.jsonl import read_lines

if TYPE_CHECKING:
    pass

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


def measured(scalars: Mapping[str, Any]) -> list[str]:
    """The names of the objectives that metrics hold a loss of, in the order of the metrics."""
    suffix = "/loss"
    return [key.removesuffix(suffix) for key in scalars if key.endswith(suffix)]
