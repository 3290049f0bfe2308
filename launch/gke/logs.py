"""Shows the output of the pods of a job while they run, each line once.

kubectl repeats what it printed when a connection that was lost is made again, so it prints the time
of each line, too, which tells what is new.
"""

import contextlib
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO

_LAST_LINES = 60.0  # seconds in which the last output of ended pods arrives
# As kubectl prints it: pod and container, RFC 3339 with nanoseconds, text.
_LINE = re.compile(rb"(?P<pod>\[[^\]]*\] )(?P<time>\d{4}-\S+) (?P<text>.*)", re.DOTALL)


class PodLogs:
    """Output of the pods of each attempt."""

    def __init__(self, words: Sequence[str], *, is_new: bool):
        """words: command that prints it. is_new: whether nothing of it was printed before; else
        only new lines are."""
        self._words, self._attempt, self._is_new = [*words, "--timestamps"], -1, is_new
        self._began = time.monotonic()
        self._process: subprocess.Popen | None = None
        self._reader: threading.Thread | None = None
        self._was_over = False  # at the look before
        self._newest: dict[bytes, bytes] = {}  # time of the last line printed, by pod
        self._same: dict[bytes, int] = {}  # lines printed of that time, by pod

    def __enter__(self) -> "PodLogs":
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def follow(self, attempt: int) -> None:
        """Begins to print the output of an attempt, or continues if the connection was lost."""
        if attempt == self._attempt and self._process:
            is_over = self._process.poll() is not None
            if not (is_over and self._was_over):  # perhaps with the pods; the next look may show it
                self._was_over = is_over
                return
        self._start(attempt, "--follow")

    def finish(self, attempt: int) -> int:
        """Prints what is left of the last attempt, whose pods have ended; returns kubectl's exit
        code."""
        if attempt == self._attempt and self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_LINES)
        code = self._start(attempt).wait()
        self._end()
        return code

    def _start(self, attempt: int, *more: str) -> subprocess.Popen:
        self._end()
        if attempt != self._attempt:
            self._is_new = self._is_new or self._attempt >= 0
            self._attempt = attempt
            self._newest.clear()
        since = math.ceil(time.monotonic() - self._began)
        words = [*self._words, *more, *(() if self._is_new else (f"--since={since}s",))]
        process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert process.stdout
        self._process, self._was_over = process, False
        about = (process.stdout, bool(more))
        self._reader = threading.Thread(target=self._copy, args=about, daemon=True)
        self._reader.start()
        return process

    def _copy(self, lines: IO[bytes], follows: bool) -> None:
        """Prints the new ones of the lines that kubectl prints, until its reader is gone."""
        before, again = self._newest.copy(), self._same.copy()  # what kubectl may repeat
        with contextlib.suppress(BrokenPipeError), lines:
            for line in lines:
                if follows and not line.endswith(b"\n"):
                    return  # the connection was lost amid this line, which comes again
                match = _LINE.fullmatch(line)
                if match is None:
                    self._write(line)
                elif not self._is_printed(match["pod"], match["time"], before, again):
                    self._note(match["pod"], match["time"])
                    self._write(match["pod"] + match["text"])

    @staticmethod
    def _is_printed(
        pod: bytes, when: bytes, newest: Mapping[bytes, bytes], left: dict[bytes, int]
    ) -> bool:
        """Returns whether a line of this time was printed before.

        newest: time of the last line printed, by pod. left: lines of that time to come.
        """
        if when == newest.get(pod) and left[pod]:
            left[pod] -= 1
            return True
        return when < newest.get(pod, b"")

    def _note(self, pod: bytes, when: bytes) -> None:
        self._same[pod] = self._same[pod] + 1 if when == self._newest.get(pod) else 1
        self._newest[pod] = when

    def _write(self, line: bytes) -> None:
        sys.stdout.write(line.removesuffix(b"\n").decode(errors="backslashreplace") + "\n")
        sys.stdout.flush()

    def _end(self) -> None:
        if self._process and self._reader:
            if self._process.poll() is None:
                self._process.terminate()
            self._process.wait()
            self._reader.join()
