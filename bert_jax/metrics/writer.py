"""Writes metrics as JSON lines and TensorBoard events, and to Weights & Biases if asked to."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from etils import epath

from bert_jax.metrics.fill_records import FILLS, Guesses, Sentence
from bert_jax.metrics.jsonl import EventLog
from bert_jax.metrics.run_records import Event, Measured, line

if TYPE_CHECKING:
    from bert_jax.metrics.tensorboard import ScalarEvents
    from bert_jax.metrics.wandb_run import WandbRun


class MetricWriter:
    """Appends records to a file, and scalars to TensorBoard event files and Weights & Biases.

    A failed write never ends a run; it is reported once. Only process 0 writes.

    Attributes:
        wandb: the run of Weights & Biases, if there is one; closed with the writer.
    """

    wandb: "WandbRun | None" = None

    def __init__(
        self,
        path: epath.Path,
        tensorboard: epath.Path,
        hparams: Mapping[str, Any] = MappingProxyType({}),
        *,
        is_first: bool = True,
    ):
        """path: of the records. tensorboard: folder of the event files. hparams: by name, for
        TensorBoard's table of runs. is_first: whether this is process 0."""
        self._active = is_first
        self._lines = EventLog(path)
        self._folder, self._hparams = tensorboard, hparams
        self._last = ""  # kind of the last event
        self._curves: ScalarEvents | None = None  # one file for each start, from the first scalar
        self._first_step = 0

    def write(self, kind: Measured, step: int, phase: int, scalars: Mapping[str, Any]) -> None:
        """Writes metrics; values that are not numbers (names, lists) go to the file only.

        step: number of updates applied to the parameters, the last in `config.phases[phase]`.
        """
        self._record(kind, step, phase, scalars)
        if self._active:
            numbers = {f"{kind}/{k}": float(v) for k, v in scalars.items() if _is_shown(k, v)}
            self._events().write(step, numbers)
            if self.wandb is not None:
                self.wandb.write(step, numbers)

    def fills(self, step: int, phase: int, sentences: Sequence[Sentence], guesses: Guesses) -> None:
        """Writes what was guessed for the hidden word of each sentence; `step` and `phase` as in
        `write`. The sentences are in the record of the start, `hidden`."""
        self._record(FILLS, step, phase, {"guesses": guesses})
        if self._active:
            header = ("sentence", "hidden word", "guesses")
            rows = [
                (f"{s.before}[MASK]{s.after}", s.word, "  ".join(f"{t} {p:.0%}" for t, p in own))
                for s, own in zip(sentences, guesses, strict=True)
            ]
            self._events().add_table(step, FILLS, header, rows)
            if self.wandb is not None:
                self.wandb.add_table(step, FILLS, header, rows)

    def event(self, kind: Event, step: int, phase: int, **values: Any) -> None:
        """Writes an event; `step` and `phase` as in `write`, except where `Event` notes otherwise.

        values: numbers, text, and lists and dicts of these.
        """
        if kind == "start":
            self._first_step = step
        self._last = kind
        self._record(kind, step, phase, values)

    def flush(self) -> None:
        """Waits until the records so far are written, or that takes too long."""
        self._lines.flush()

    def close(self) -> None:
        self._lines.close()
        if self._curves is not None:
            self._curves.close()
        if self.wandb is not None:
            self.wandb.close(failed=self._last not in ("finished", "stopped"))

    def _events(self) -> "ScalarEvents":
        if self._curves is None:
            from bert_jax.metrics.tensorboard import ScalarEvents

            self._curves = ScalarEvents(self._folder, self._first_step, self._hparams)
        return self._curves

    def _record(self, kind: str, step: int, phase: int, values: Mapping[str, Any]) -> None:
        if self._active:
            self._lines.append(line(kind, step, phase, values))


def _is_shown(name: str, value: Any) -> bool:
    """Returns whether a value is a number for a curve. A NaN loss is one; the margin of a single
    document, which is not known, is none."""
    if not hasattr(value, "__float__") or isinstance(value, bool):
        return False
    return not name.endswith("_margin") or math.isfinite(float(value))
