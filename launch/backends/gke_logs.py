"""Shows the output of the pods of a job while they run, each line once."""

import contextlib
import math
import subprocess
import sys
import time
from collections.abc import Sequence

_LAST_LINES = 60.0  # seconds in which the last output of ended pods arrives


class PodLogs:
    """Output of the pods of each attempt, which kubectl writes to this process's own output."""

    def __init__(self, words: Sequence[str], *, is_new: bool):
        """words: command that prints it. is_new: whether nothing of it was printed before."""
        self._words, self._attempt, self._is_new = list(words), -1, is_new
        self._process: subprocess.Popen | None = None
        self._seen = time.monotonic()  # when it was last known to follow
        self._was_over = False  # at the look before

    def __enter__(self) -> "PodLogs":
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def follow(self, attempt: int) -> None:
        """Begins to print the output of an attempt, or continues if the connection was lost."""
        is_same = attempt == self._attempt
        if is_same and self._process:
            if self._process.poll() is None:
                self._seen, self._was_over = time.monotonic(), False
                return
            if not self._was_over:  # perhaps with the pods, whose end the next look may show
                self._was_over = True
                return
        is_first = not is_same and (self._attempt >= 0 or self._is_new)
        since = () if is_first else (f"--since={math.ceil(time.monotonic() - self._seen)}s",)
        self._attempt = attempt
        self._end()
        sys.stdout.flush()
        self._process = subprocess.Popen([*self._words, "--follow", *since])
        self._seen, self._was_over = time.monotonic(), False

    def finish(self, attempt: int) -> None:
        """Prints what is left of the last attempt, whose pods have ended."""
        if attempt != self._attempt:
            sys.stdout.flush()
            subprocess.run(self._words, check=False)
        elif self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_LINES)

    def _end(self) -> None:
        if self._process:
            self._process.terminate()
            self._process.wait()
