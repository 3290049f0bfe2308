"""What a person sees of a run: a bar with loss, tokens/s and time left, or plain lines."""

from collections.abc import Mapping
from types import TracebackType

import rich.console
import rich.progress

console = rich.console.Console(highlight=False, soft_wrap=True)


class RunDisplay:
    """A progress bar on a terminal; elsewhere one line per report."""

    def __init__(self, total_steps: int, first_step: int):
        self._total = total_steps
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("[bold]{task.completed}/{task.total}"),
            rich.progress.BarColumn(bar_width=None),
            rich.progress.TextColumn("{task.fields[numbers]}"),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TextColumn("left"),
            rich.progress.TimeRemainingColumn(compact=True, elapsed_when_finished=False),
            console=console,
            disable=not console.is_terminal,
            speed_estimate_period=60,
        )
        self._task = self._bar.add_task(
            "train", total=total_steps, completed=first_step, numbers="compiling"
        )

    def __enter__(self) -> "RunDisplay":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def advance(self, step: int) -> None:
        self._bar.update(self._task, completed=step)

    def train(self, step: int, scalars: Mapping[str, float]) -> None:
        """Shows the numbers of the last stretch of steps."""
        numbers = (
            f"loss {scalars['loss']:.3f}  mlm {scalars['mlm/loss']:.3f}  "
            f"nsp {scalars['nsp/loss']:.3f}  {scalars['tokens_per_second']:,.0f} tokens/s"
        )
        self._bar.update(self._task, completed=step, numbers=numbers)
        if not console.is_terminal:
            left = (self._total - step) * scalars["step_seconds"]
            console.print(f"step {step}/{self._total}  {numbers}  {_clock(left)} left")

    def evaluation(self, step: int, scalars: Mapping[str, float]) -> None:
        """One line: held-out loss and accuracy beside what trivial predictions give."""
        console.print(
            f"step {step}  held-out: "
            f"MLM loss {scalars['mlm/loss']:.3f} (unigram {scalars['mlm/baseline_loss']:.3f}), "
            f"accuracy {scalars['mlm/accuracy']:.1%} ({scalars['mlm/baseline_accuracy']:.1%}); "
            f"NSP loss {scalars['nsp/loss']:.3f} ({scalars['nsp/baseline_loss']:.3f}), "
            f"accuracy {scalars['nsp/accuracy']:.1%} ({scalars['nsp/baseline_accuracy']:.1%}, "
            f"source alone {scalars['nsp/source_accuracy']:.1%})"
        )


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
