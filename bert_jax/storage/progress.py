"""Progress on standard error: a terminal for messages, a bar over bytes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

# Standard output is for results. Plain text in notebooks, where rich needs ipywidgets for a bar.
terminal = Console(stderr=True, force_jupyter=False)


@contextmanager
def byte_bar(title: str, total: int, start: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """Shows a bar with speed and remaining time; yields a function that sets the bytes done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=terminal, disable=not shown) as bar:
        task = bar.add_task(title, total=total, completed=start)
        yield lambda done: bar.update(task, completed=done)
