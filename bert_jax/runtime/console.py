"""Console output: plain lines, progress bars, tables."""

import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import Any

import rich.console
import rich.progress
import rich.table
import rich.text

from bert_jax.runtime.log import plain


class Console(rich.console.Console):
    """Prints text verbatim: names of files, sources and tokens are not markup or emoji codes.

    In a notebook, too: rich would print every line there as a block of HTML.
    """

    def __init__(self, *, stderr: bool = False):
        super().__init__(
            stderr=stderr,
            highlight=False,
            soft_wrap=True,
            markup=False,
            emoji=False,
            force_jupyter=False,
        )

    def render_str(self, text: str, **options: Any) -> rich.text.Text:
        return super().render_str(plain(text), **options)


class _Display(rich.progress.Progress):
    """One that `end_displays` ends if the program does."""

    def start(self) -> None:
        _DISPLAYS.append(self)
        super().start()

    def stop(self) -> None:
        if self in _DISPLAYS:
            _DISPLAYS.remove(self)
        super().stop()


console = Console()
_DISPLAYS: list[_Display] = []  # that are shown
_WIDEST = 100_000  # columns of a terminal that no table fills


def progress(what: str, total: int, output: Console | None = None) -> rich.progress.Progress:
    """Returns a bar with rate and time left for `total` items; hidden unless on a terminal.

    output: where it is shown; by default the console of this module.
    """
    output = output or console
    bar = _Display(
        rich.progress.TextColumn("{task.description} {task.completed}/{task.total}"),
        rich.progress.BarColumn(bar_width=None),
        rich.progress.TextColumn("{task.fields[rate]}"),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TextColumn("left"),
        rich.progress.TimeRemainingColumn(compact=True, elapsed_when_finished=False),
        console=output,
        disable=not output.is_terminal,
    )
    bar.add_task(what, total=total, rate="")
    return bar


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Shows a spinner with elapsed time on standard error; a single line if not a terminal."""
    errors = Console(stderr=True)
    if not errors.is_terminal:
        errors.print(f"{what} …")
    with elapsed(what, errors):
        yield


def elapsed(what: str, output: Console = console) -> rich.progress.Progress:
    """Returns a spinner with the elapsed time; hidden unless on a terminal."""
    spinner = _Display(
        rich.progress.SpinnerColumn(),
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.TimeElapsedColumn(),
        console=output,
        transient=True,
        disable=not output.is_terminal,
    )
    spinner.add_task(what, total=None)
    return spinner


def end_displays() -> None:
    """Erases spinners, ends bars, and shows the cursor, which they hide: before a program ends
    without unwinding its stack."""
    for display in list(_DISPLAYS):
        display.stop()
    console.show_cursor()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a text table; all columns but the last are right-aligned."""
    made = rich.table.Table(box=None, pad_edge=False)
    for name in header[:-1]:
        made.add_column(name, justify="right")
    made.add_column(header[-1])
    for row in rows:
        made.add_row(*row)
    return as_text(made)


def as_text(made: rich.table.Table) -> str:
    """Renders a table without styles, as wide as its content."""
    out = io.StringIO()
    widest = rich.console.Console(
        file=out, width=_WIDEST, markup=False, emoji=False, highlight=False,
        color_system=None, force_terminal=False, force_jupyter=False,
    )  # fmt: skip
    widest.print(made)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def clock(seconds: float) -> str:
    """Formats a duration in seconds as h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
