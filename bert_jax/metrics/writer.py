"""Write metrics.jsonl and TensorBoard events."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from etils import epath

from bert_jax.metrics.jsonl import EventLog

if TYPE_CHECKING:
    from bert_jax.metrics.tensorboard import ScalarEvents
from bert_jax.metrics.records import LOG, Event, Measured, line


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


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, bool)
