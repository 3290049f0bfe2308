"""What a process is doing, and for how long: one account for deadlines and goodput."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# What a run does with its time; all but "other" have a deadline of that name in the configuration.
ACTIVITIES = (
    "start",
    "compile",
    "data",
    "step",
    "evaluate",
    "save",
    "restore",
    "barrier",
    "other",
)


class ActivityClock:
    """Keeps account of one process; safe to read from other threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(ACTIVITIES, 0.0)
        self._activity, self._since, self._booked = "other", time.monotonic(), time.monotonic()
        self.step = 0  # updates done, for whoever asks where this process is

    @contextmanager
    def activity(self, activity: str) -> Iterator[None]:
        """What is done inside is this activity; one within another counts for the inner alone."""
        before = self._enter(activity)
        try:
            yield
        finally:
            self._enter(before)

    def progress(self) -> None:
        """The activity goes well: its deadline starts anew (a batch of many was evaluated)."""
        with self._lock:
            self._since = time.monotonic()

    def now(self) -> tuple[str, float]:
        """The activity, and for how many seconds."""
        with self._lock:
            return self._activity, time.monotonic() - self._since

    def seconds(self) -> dict[str, float]:
        """Activity -> seconds spent at it so far; they add up to the time since the start."""
        with self._lock:
            self._book()
            return dict(self._seconds)

    def _enter(self, activity: str) -> str:
        with self._lock:
            self._book()
            before, self._activity = self._activity, activity
            self._since = self._booked
            return before

    def _book(self) -> None:
        now = time.monotonic()
        self._seconds[self._activity] += now - self._booked
        self._booked = now
