"""What a person sees: a bar with loss, tokens/s and time left, or plain lines; tables."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import rich.console
import rich.progress
import rich.text

# What would steer a terminal or cannot be printed: control characters but line feed and tab, halves
# of characters (names that are no UTF-8), and those that turn the direction of writing round.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """The text with everything in it that a terminal would obey replaced."""
    return _UNSAFE.sub("\ufffd", text)


class Console(rich.console.Console):
    """Prints text as it is: names of files, sources and tokens are no markup and no emoji codes."""

    def __init__(self, *, stderr: bool = False):
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> rich.text.Text:
        return super().render_str(plain(text), **options)


console = Console()

# Metric names -> what people call them.
NAMES = {"mlm": "MLM", "nsp": "NSP", "sop": "SOP", "sbo": "SBO"}


class RunDisplay:
    """A progress bar over the whole run on a terminal; elsewhere one line per report."""

    def __init__(self, total_steps: int, first_step: int, phases: int = 1):
        """phases: of the run; where there are several, the one at work is shown."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def phase(self, index: int, says: object) -> None:
        """A phase begins, or goes on."""
        if self._phases > 1:
            self._phase = f"  phase {index + 1}/{self._phases}"
            console.print(f"phase {index + 1} of {self._phases}: {says}")
        self._bar.update(self._task, phase=self._phase, numbers="", left="")

    def advance(self, step: int) -> None:
        self._bar.update(self._task, completed=step)

    def train(self, step: int, scalars: Mapping[str, float], seconds_left: float) -> None:
        """Shows the numbers of the last stretch of steps."""
        losses = [f"{name} {scalars[f'{name}/loss']:.3f}" for name in measured(scalars)]
        parts = [f"loss {scalars['loss']:.3f}", *losses] if losses else ["no finite loss"]
        numbers = "  ".join([*parts, f"{scalars['tokens_per_second']:,.0f} tokens/s"])
        left = f"{clock(seconds_left)} left"
        self._bar.update(self._task, completed=step, numbers=numbers, left=left)
        if not console.is_terminal:
            console.print(f"step {step}/{self._total}{self._phase}  {numbers}  {left}")

    def evaluation(self, step: int, scalars: Mapping[str, float]) -> None:
        """One line: held-out loss and accuracy beside what trivial predictions give."""
        console.print(f"step {step}{self._phase}  held-out: {held_out(scalars)}")


def measured(scalars: Mapping[str, float]) -> list[str]:
    """The objectives that scalars hold a loss of."""
    return [name for name in NAMES if f"{name}/loss" in scalars]


def held_out(scalars: Mapping[str, float]) -> str:
    """Losses and accuracies, in brackets what is to be had without reading."""
    parts = []
    for name in measured(scalars):
        names = ("loss", "accuracy", "baseline_loss", "baseline_accuracy")
        loss, right, trivial_loss, trivial = (scalars[f"{name}/{what}"] for what in names)
        source = scalars.get(f"{name}/source_accuracy")
        word, alone = ("unigram ", "") if source is None else ("", f", source alone {source:.1%}")
        parts.append(
            f"{NAMES[name]} loss {loss:.3f} ({word}{trivial_loss:.3f}), "
            f"accuracy {right:.1%} ({trivial:.1%}{alone})"
        )
    return "; ".join(parts) or "no finite loss"


def progress(what: str, total: int) -> rich.progress.Progress:
    """A bar with rate and time left for `total` pieces of work; hidden where it is no terminal."""
    bar = rich.progress.Progress(
        rich.progress.TextColumn("{task.description} {task.completed}/{task.total}"),
        rich.progress.BarColumn(bar_width=None),
        rich.progress.TextColumn("{task.fields[rate]}"),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TextColumn("left"),
        rich.progress.TimeRemainingColumn(compact=True, elapsed_when_finished=False),
        console=console,
        disable=not console.is_terminal,
    )
    bar.add_task(what, total=total, rate="")
    return bar


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """On standard error, that something long is done, with the time so far; elsewhere one line."""
    errors = Console(stderr=True)
    if not errors.is_terminal:
        errors.print(f"{what} …")
        yield
        return
    spinner = rich.progress.Progress(
        rich.progress.SpinnerColumn(),
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.TimeElapsedColumn(),
        console=errors,
        transient=True,
    )
    with spinner:
        spinner.add_task(what, total=None)
        yield


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what stands in them, all but the last to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width).rstrip() if i == len(row) - 1 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (header, *rows)
    )


def clock(seconds: float) -> str:
    """h:mm:ss"""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
