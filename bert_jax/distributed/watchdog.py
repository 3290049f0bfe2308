"""What a process is doing, for how long, and its end where that takes too long.

One account serves deadlines, goodput and the lines that say where a process hangs.
"""

import contextlib
import dataclasses
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from bert_jax.config.schema import DeadlineConfig
from bert_jax.errors import LOST, STOPPED
from bert_jax.runtime.activity import ACTIVITIES, ActivityClock

_TELLING = 15.0  # seconds that a process that ends has to say so
_STOPPED = 2.0  # seconds between two looks, after which this process itself stood still


class ProcessExit:
    """Ends the process from a thread, with one line and an exit code; whoever comes first.

    The main thread may be anywhere, in a collective that never ends too, so nothing is unwound:
    what is written was flushed when it was written.
    """

    def __init__(self, host: str):
        self._host, self._lock = host, threading.Lock()
        # What else must hear of it before this process is gone: (code, line).
        self.before: list[Callable[[int, str], None]] = []
        self.with_stacks = False  # the others are to say where they are, too

    def end(self, code: int, line: str, *, stacks: bool = False, tell: bool = True) -> NoReturn:
        """Says the line, with `stacks` where every thread is, tells the others, exits."""
        self._lock.acquire()  # for good: a second thread with another reason waits for the end
        # What is said and told below may wait for a thread that hangs, or for a full pipe.
        timer = threading.Timer(_TELLING, os._exit, (code,))
        timer.daemon = True
        timer.start()
        self.with_stacks = stacks
        if stacks:
            print(f"{self._host}: where every thread is:", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(all_threads=True)
        prefix = "" if code == STOPPED else "error: "
        print(f"{prefix}{line}", file=sys.stderr, flush=True)
        for hear in self.before if tell else ():
            with contextlib.suppress(Exception):
                hear(code, line)
        os._exit(code)


class Watchdog:
    """Ends a process that takes longer at something than its deadline allows."""

    def __init__(
        self, clock: ActivityClock, deadlines: DeadlineConfig, host: str, process_exit: ProcessExit
    ):
        self._clock, self._host, self._process_exit = clock, host, process_exit
        self._over = threading.Event()
        self._deadlines = {
            activity: seconds
            for activity, seconds in dataclasses.asdict(deadlines).items()
            if activity in ACTIVITIES
        }
        # These say themselves who is missing, at their deadline; this is for when they cannot.
        self._deadlines["start"] += 30.0
        self._deadlines["barrier"] = max(self._deadlines.values()) + 30.0
        # What others are doing, for the line: set by whoever knows.
        self.others: Callable[[], str] = lambda: ""

    def start(self) -> None:
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """The process goes on, with something else."""
        self._over.set()

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._over.wait(0.2):
            now, before = time.monotonic(), looked
            looked = now
            if now - before > _STOPPED:  # Ctrl-Z, a machine asleep: nothing of it was work
                self._clock.progress()
            activity, seconds = self._clock.now()
            if seconds > self._deadlines.get(activity, float("inf")):
                others = self.others()
                self._process_exit.end(
                    LOST,
                    f"{self._host} hangs: {seconds:.0f} s at {activity!r} after step "
                    f"{self._clock.step} (config.deadlines.{activity})"
                    + (f"; {others}" if others else ""),
                    stacks=True,
                )
