"""The terminal's view of a run: progress bar, losses, time left."""

from collections.abc import Mapping
from typing import Final

import rich.console
import rich.progress
import rich.text

from bert_jax.metrics.neighbor_attention import by_layer
from bert_jax.metrics.run_records import (
    baseline_word,
    margin,
    measured_on,
    objectives_in,
    task_metrics,
)
from bert_jax.runtime.console import clock, console
from bert_jax.runtime.log import logger

# Of a student, beside its losses.
_TAUGHT: Final = {"distillation/kl": "kl", "distillation/agreement": "agreement"}


class RunDisplay:
    """A progress bar over the run on a terminal; elsewhere one line per report."""

    def __init__(self, total_steps: int, first_step: int, phases: int = 1):
        """phases: number of phases of the run; the current one is shown if there are several."""
        self._total, self._phases, self._phase = total_steps, phases, ""
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("[bold]{task.completed}/{task.total}{task.fields[phase]}"),
            rich.progress.BarColumn(bar_width=None),
            rich.progress.TextColumn("{task.fields[numbers]}"),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TextColumn("{task.fields[left]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(
            "train", total=total_steps, completed=first_step, numbers="", phase="", left=""
        )

    def __enter__(self) -> "RunDisplay":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def phase(self, index: int, description: object) -> None:
        """Shows that a phase starts or resumes."""
        if self._phases > 1:
            self._phase = f"  phase {index + 1}/{self._phases}"
            logger.info(f"phase {index + 1} of {self._phases}: {description}")
        self._bar.update(self._task, phase=self._phase, numbers="", left="")

    def advance(self, step: int) -> None:
        """Moves the bar to `step` updates done."""
        self._bar.update(self._task, completed=step)

    def train(self, step: int, scalars: Mapping[str, float], seconds_left: float) -> None:
        """Shows the metrics of the steps since the last report."""
        losses = [f"{name} {scalars[f'{name}/loss']:.3f}" for name in objectives_in(scalars)]
        taught = [f"{what} {scalars[key]:.3f}" for key, what in _TAUGHT.items() if key in scalars]
        own = losses if len(losses) > 1 or taught else []  # one alone is the loss itself
        parts = [f"loss {scalars['loss']:.3f}", *own, *taught] if losses else ["no finite loss"]
        numbers = "  ".join([*parts, f"{scalars['tokens_per_second']:,.0f} tokens/s"])
        left = f"{clock(seconds_left)} left"
        self._bar.update(self._task, completed=step, numbers=numbers, left=left)
        if not console.is_terminal:
            logger.info(f"step {step}/{self._total}{self._phase}  {numbers}  {left}")

    def evaluation(self, step: int, scalars: Mapping[str, float]) -> None:
        """Prints held-out losses and accuracies with their baselines on one line."""
        logger.info(f"step {step}{self._phase}  held-out: {held_out(scalars)}")

    def compared(self, beside: Mapping[str, Mapping[str, float]]) -> None:
        """Prints a line for each row that the metrics of a task are compared with."""
        for name, measured in beside.items():
            logger.info(f"{name}: {_task_metrics(measured)}")


def _task_metrics(measured: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in measured.items())


def held_out(scalars: Mapping[str, float]) -> str:
    """Formats losses and accuracies, each with its margin, its trivial baseline in parentheses, and
    what they were measured on."""
    parts, measured = [], task_metrics(scalars)
    for name in () if measured else objectives_in(scalars):
        names = ("loss", "accuracy", "baseline_loss", "baseline_accuracy")
        loss, right, trivial_loss, trivial = (scalars[f"{name}/{what}"] for what in names)
        source = scalars.get(f"{name}/source_accuracy")
        alone = "" if source is None else f", source alone {source:.1%}"
        auc = scalars.get(f"{name}/auc")  # of labels, which have no frequencies of words
        parts.append(
            f"{name.upper()} loss {loss:.3f}{margin(scalars, f'{name}/loss', '.3f')} "
            f"({baseline_word(scalars, name)} {trivial_loss:.3f}), accuracy {right:.1%}"
            f"{margin(scalars, f'{name}/accuracy', '.1%')} ({trivial:.1%}{alone})"
            f"{'' if auc is None else f', AUC {auc:.3f} (0.500)'}"
        )
    if measured:
        parts.append(f"loss {scalars['loss']:.4f}, {_task_metrics(measured)}")
    if on := measured_on(scalars):
        parts.append(f"{on}, ± 95 %")
    attention = by_layer(scalars).values()
    if attention:
        shares = ", ".join(f"{share:.0%}" for share in attention)
        parts.append(f"attention on a neighbour by layer {shares}")
    return "; ".join(parts) or "no finite loss"
