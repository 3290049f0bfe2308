"""Records of a run: one JSON object per line of `Workdir.metrics`.

Reading them needs neither JAX nor TensorBoard.
"""

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeGuard

from etils import epath

from bert_jax.errors import UserError, count
from bert_jax.metrics.jsonl import read_lines
from bert_jax.storage import json_record
from bert_jax.storage.remote import reason

Measured = Literal["train", "eval"]
# Events of a run; docs/training_reference.md lists the fields of each record.
Event = Literal[
    "start",  # training starts; step: the one it resumes from
    "fills",  # guesses for hidden words, see `fill_records`
    "compared",  # rows beside the metrics of a task, measured before the first step
    "goodput",  # seconds by activity so far
    "skipped",  # a skipped update; step: its number from 0, as for `data batch --step`
    "quarantined",  # a checkpoint that is damaged or of another run was moved to quarantine/
    "adopted",  # a checkpoint of another run was adopted by this one
    "save_failed",
    "stopped",
    "lost",
    "finished",
]


def line(kind: str, step: int, phase: int, values: Mapping[str, Any]) -> str:
    """A record as a line of strict JSON; numbers that are not finite become null."""
    record = {"kind": kind, "step": step, "phase": phase, "time": time.time(), **values}
    return json.dumps(strict(record), allow_nan=False) + "\n"


def strict(value: Any) -> Any:
    """The value for strict JSON: NumPy scalars as Python's, None for non-finite numbers."""
    if isinstance(value, Mapping):
        return {str(name): strict(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [strict(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    return value if not isinstance(value, float) or math.isfinite(value) else None


def read_records(path: epath.Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind in a file, as `of_kind`."""
    return of_kind(records(path), kind)


def of_kind(logged: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The records of one kind, sorted by step; for repeated steps, the latest."""
    kinds = (record for record in logged if record["kind"] in (kind, "start"))  # not all in memory
    by_step = {record["step"]: record for record in lasting(kinds) if record["kind"] == kind}
    return [by_step[step] for step in sorted(by_step)]


def lasting(logged: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records without those of steps that a restart undid, in the order written."""
    kept: list[dict[str, Any]] = []
    for record in logged:
        if record["kind"] == "start":
            kept = [old for old in kept if _steps_done(old) <= record["step"]]
        kept.append(record)
    return kept


def _steps_done(record: Mapping[str, Any]) -> int:
    """The steps done after a record; a skipped one has its number from 0."""
    done: int = record["step"]
    return done + (record["kind"] == "skipped")


def records(path: epath.Path) -> Iterator[dict[str, Any]]:
    """Yields every complete record of a file, in the order written; none if no file exists. Raises
    UserError if it cannot be read. Nulls, which stand for non-finite numbers, become NaN."""
    for text in _lines(path):
        try:
            record = json_record.parse(text)
        except ValueError:  # truncated by a kill, or damaged
            continue
        if isinstance(record, dict) and isinstance(record.get("kind"), str):
            step = record.get("step")
            if isinstance(step, int) and not isinstance(step, bool) and step >= 0:
                yield {name: math.nan if v is None else v for name, v in record.items()}


def _lines(path: epath.Path) -> Iterator[str]:
    try:
        yield from read_lines(path)
    except Exception as error:  # from the disk or a bucket's client
        raise UserError(f"{path}: cannot be read ({reason(error)})") from error


def is_finite(value: Any) -> TypeGuard[float]:
    """Returns whether a value in a record is a finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int too large for a float
        return False


TASK_METRIC: Final = "task/"  # prefix of the metrics of a task: "task/matthews"


def task_metrics(scalars: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of a task by name; those that are not defined are NaN."""
    return {
        key.removeprefix(TASK_METRIC): value
        for key, value in scalars.items()
        if key.startswith(TASK_METRIC)
    }


def compared(logged: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the rows that the metrics of a task are compared with: name -> metrics; those that a
    run recorded last, none of most runs."""
    found: dict[str, dict[str, Any]] = {}
    for record in of_kind(logged, "compared"):
        found = record["beside"] if _is_compared(record.get("beside")) else found
    return found


def _is_compared(value: Any) -> bool:
    rows = value.values() if isinstance(value, dict) else [None]
    return all(isinstance(row, dict) and all(map(is_finite, row.values())) for row in rows)


def baseline_word(scalars: Mapping[str, Any], objective: str) -> str:
    """Returns the name of an objective's baseline: the most frequent label of pairs and of replaced
    tokens, the frequencies of tokens otherwise."""
    of_labels = {f"{objective}/source_accuracy", f"{objective}/auc"} & set(scalars)
    return "constant" if of_labels else "unigram"


def margin(scalars: Mapping[str, Any], key: str, form: str) -> str:
    """Returns " ± 0.040" of a mean with a margin; "" where none is recorded, or documents are too
    few for one.

    form: of the mean and its margin.
    """
    value = scalars.get(f"{key}_margin")
    return f" ± {value:{form}}" if is_finite(value) else ""


def measured_on(scalars: Mapping[str, Any]) -> str:
    """Returns "52 MLM and 15 NSP predictions in 8 documents": what the means of an evaluation are
    of; "" where it is not recorded."""
    documents = scalars.get("documents")
    if not is_finite(documents):
        return ""
    counts = ((name, scalars.get(f"{name}/count")) for name in objectives_in(scalars))
    shown = [f"{n:,.0f} {name.upper()}" for name, n in counts if is_finite(n)]
    if not shown:
        return ""
    return f"{' and '.join(shown)} predictions in {count(round(documents), 'document')}"


def shown(metric: float | None) -> str:
    """Returns the value of a task's metric in words."""
    return f"{metric:.4f}" if is_finite(metric) else "not defined"


def objectives_in(scalars: Mapping[str, Any]) -> list[str]:
    """The names of the objectives that metrics hold a loss of, in the order of the metrics; not
    those of a source, such as "mlm/books/loss"."""
    names = (key.removesuffix("/loss") for key in scalars if key.endswith("/loss"))
    return [name for name in names if "/" not in name]
