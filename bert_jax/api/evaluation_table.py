"""The measures of vectors as a table and as JSON."""

import dataclasses
import json
from typing import Any, NamedTuple

from bert_jax.ablation.intervals import Interval
from bert_jax.metrics.run_records import strict
from bert_jax.runtime.console import table


class Value(NamedTuple):
    """A measure, or a difference of two, with its 95 % interval if there is one."""

    value: float | None
    interval: Interval | None


@dataclasses.dataclass(frozen=True)
class Row:
    """A measure of a model or of a baseline.

    Attributes:
        n: pairs or queries.
        difference: the first model minus this one, paired; None of the first model itself.
    """

    measure: str
    model: str
    n: int
    found: Value
    difference: Value | None


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The measures of a model on a file or folder, and of what it is compared with.

    Attributes:
        what: of the data, in words.
        intervals: how they were made, in words.
        notes: on what was left out.
    """

    path: str
    what: str
    intervals: str
    rows: list[Row]
    notes: list[str]

    def as_json(self) -> str:
        """Returns one JSON object."""
        rows = [
            {
                "measure": row.measure,
                "model": row.model,
                "n": row.n,
                **_flat("", row.found),
                **(_flat("difference_", row.difference) if row.difference else {}),
            }
            for row in self.rows
        ]
        values = {
            "data": self.path,
            "what": self.what,
            "intervals": self.intervals,
            "rows": rows,
            "notes": self.notes,
        }
        return json.dumps(strict(values), allow_nan=False)

    def as_text(self) -> str:
        """Returns a table, a row for each measure and model."""
        header = ["measure", "n", "value", "95 % interval"]
        compared = any(row.difference for row in self.rows)
        further = ["difference", "95 % interval"] if compared else []
        cells = []
        for row in self.rows:
            own = [row.measure, f"{row.n:,}", *_cells(row.found, "")]
            if compared:
                own += _cells(row.difference, "+") if row.difference else ["", ""]
            cells.append([*own, row.model])
        lines = [f"{self.path}: {self.what}", table([*header, *further, "model"], cells)]
        lines.append(f"95 % intervals: {self.intervals}")
        if compared:
            lines.append(f"difference: {self.rows[0].model} minus the model of the row, paired")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _flat(prefix: str, found: Value) -> dict[str, Any]:
    low, high = found.interval or (None, None)
    return {f"{prefix or 'value'}".rstrip("_"): found.value} | {
        f"{prefix}low": low,
        f"{prefix}high": high,
    }


def _cells(found: Value, sign: str) -> list[str]:
    """Formats a value and its interval; sign: "+" of differences."""
    if found.value is None:
        return ["-", "-"]
    if found.interval is None:
        return [f"{found.value:{sign}.4f}", "-"]
    low, high = (f"{end:{sign}.4f}" for end in found.interval)
    return [f"{found.value:{sign}.4f}", f"{low} to {high}"]
