"""Writes metrics as JSON lines and TensorBoard events."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
from etils import epath

from bert_jax.metrics.jsonl import EventLog

if TYPE_CHECKING:
    from bert_jax.metrics.tensorboard import ScalarEvents
from bert_jax.metrics.records import Event, Measured, line


class MetricWriter:
    """Appends records to a file, and scalars to TensorBoard event files.

    A failed write never ends a run; it is reported once. Only process 0 writes.
    """

    def __init__(self, path: epath.Path, tensorboard: epath.Path):
        """path: of the records. tensorboard: folder of the event files."""
        self._active = jax.process_index() == 0
        self._lines = EventLog(path)
        self._folder = tensorboard
        self._curves: ScalarEvents | None = None  # one file for each start, from the first scalar
        self._first_step = 0

    def write(self, kind: Measured, step: int, phase: int, scalars: Mapping[str, Any]) -> None:
        """Writes metrics; values that are not numbers (names, lists) go to the file only.

        step: number of updates applied to the parameters, the last in `config.phases[phase]`.
        """
        self._record(kind, step, phase, scalars)
        if self._active:
            numbers = {f"{kind}/{k}": float(v) for k, v in scalars.items() if _is_number(v)}
            if self._curves is None:
                from bert_jax.metrics.tensorboard import ScalarEvents

                self._curves = ScalarEvents(self._folder, self._first_step)
            self._curves.write(step, numbers)

    def event(self, kind: Event, step: int, phase: int, **values: Any) -> None:
        """Writes an event; `step` and `phase` as in `write`, except where `Event` notes otherwise.

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


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, bool)
