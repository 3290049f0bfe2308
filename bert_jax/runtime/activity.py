"""The activity clock: times what a process is doing, for deadlines and goodput."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Activities of a run; all but "other" have a deadline of that name in the configuration.
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
    """Times the activities of one process; safe to read from other threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(ACTIVITIES, 0.0)
        self._activity, self._since, self._booked = "other", time.monotonic(), time.monotonic()
        self.step = 0  # updates done, for messages about this process

    @contextmanager
    def activity(self, activity: str) -> Iterator[None]:
        """Counts the time inside as this activity; nested time counts only for the inner one."""
        before = self._enter(activity)
        try:
            yield
        finally:
            self._enter(before)

    def progress(self) -> None:
        """Restarts the activity's deadline after progress, such as one evaluated batch of many."""
        with self._lock:
            self._since = time.monotonic()

    def now(self) -> tuple[str, float]:
        """Returns the current activity and its duration in seconds."""
        with self._lock:
            return self._activity, time.monotonic() - self._since

    def seconds(self) -> dict[str, float]:
        """Returns activity -> seconds spent on it so far; they sum to the time since the start."""
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
