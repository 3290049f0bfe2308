"""Deadlines: ends a process that takes too long at one activity, and reports where it hangs.

The same activity clock measures deadlines and goodput.
"""

import contextlib
import dataclasses
import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from bert_jax.config.schema import DeadlineConfig
from bert_jax.exit_codes import LOST, STOPPED
from bert_jax.runtime.activity import ACTIVITIES, ActivityClock
from bert_jax.runtime.console import end_displays
from bert_jax.runtime.log import NOTICE, logger

_TELLING = 15.0  # seconds for an ending process to report it
_SUSPENDED_AFTER = 2.0  # seconds between two checks that mean this process itself was suspended


class ProcessExit:
    """Ends the process from any thread with a one-line message and an exit code; first call wins.

    The main thread may be blocked, even in a collective that never returns, so the stack is not
    unwound: every file is flushed when it is written.
    """

    def __init__(self, host: str):
        self._host, self._lock = host, threading.Lock()
        # Called with (code, line) before the process ends.
        self.before: list[Callable[[int, str], None]] = []
        self.with_stacks = False  # the other processes are to print their stacks, too

    def end(self, code: int, line: str, *, stacks: bool = False, notify: bool = True) -> NoReturn:
        """Prints the line, and every thread's stack if `stacks`; notifies the others; exits."""
        self._lock.acquire()  # never released: other threads block here until the process exits
        # Printing and notifying may block on a thread that hangs, or on a full pipe.
        timer = threading.Timer(_TELLING, os._exit, (code,))
        timer.daemon = True
        timer.start()
        end_displays()
        self.with_stacks = stacks
        if stacks:
            logger.log(NOTICE, f"{self._host}: stacks of all threads:")
            faulthandler.dump_traceback(all_threads=True)
        logger.log(NOTICE if code == STOPPED else logging.ERROR, line)
        for callback in self.before if notify else ():
            with contextlib.suppress(Exception):
                callback(code, line)
        os._exit(code)


class Watchdog:
    """Ends a process that exceeds the deadline of its current activity."""

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
        # These two report who is missing at their own deadline; this is a fallback.
        self._deadlines["start"] += 30.0
        self._deadlines["barrier"] = max(self._deadlines.values()) + 30.0
        # Returns what other processes are doing, for the message; set by `job.py`.
        self.others: Callable[[], str] = lambda: ""

    def start(self) -> None:
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stops watching; the process continues."""
        self._over.set()

    def _run(self) -> None:
        last_check = time.monotonic()
        while not self._over.wait(0.2):
            now, before = time.monotonic(), last_check
            last_check = now
            if now - before > _SUSPENDED_AFTER:  # Ctrl-Z, or the machine slept: no time at work
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
