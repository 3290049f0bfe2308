"""Contenders that train alternately in separate processes, for train_cpu.py and train_gpu.py.

The comparing process has a pipe to each contender: it writes a number of steps and reads a line of
JSON with the seconds that they took and their losses. A contender without a request blocks and uses
no CPU.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

import numpy as np

Batch = dict[str, np.ndarray]
Losses = list[float]
Take = Callable[[int], Losses]  # trains for that number of steps, blocks until done


def fail(problem: str) -> NoReturn:
    """Ends a benchmark with one line."""
    print(f"error: {problem}", file=sys.stderr)
    sys.exit(1)


def use_cores(count: int) -> None:
    """Pins this process, and those that it starts, to this many cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


class Contender:
    """A contender's process, seen from the comparing process."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]):
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def steps(self, count: int) -> tuple[float, Losses]:
        """Trains for `count` steps; returns their seconds and losses.

        Raises:
            ChildProcessError: the process has ended; its error is on standard error.
        """
        seconds, losses = self.ask(str(count))
        return seconds, losses

    def ask(self, question: str) -> Any:
        """Sends one line and returns the answer; raises ChildProcessError as `steps` does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{question}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the end of its output below is the error
        answer = self._process.stdout.readline()
        if not answer:
            raise ChildProcessError(f"a contender ended with exit code {self._process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        """Closes the pipe and waits for the process to exit."""
        self._process.communicate()


def talk_apart() -> TextIO:
    """Returns the stream for answers; redirects other standard output to standard error."""
    talk = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return talk


def answer(talk: TextIO, take: Take, others: dict[str, Callable[[], object]] | None = None) -> None:
    """Serves a contender's requests until standard input closes.

    others: answers to requests other than a number of steps.
    """
    for line in sys.stdin:
        question = line.strip()
        if others and question in others:
            reply = others[question]()
        else:
            start = time.perf_counter()
            losses = take(int(question))
            reply = [time.perf_counter() - start, losses]
        talk.write(json.dumps(reply) + "\n")


def write_batches(path: Path, batches: Sequence[Batch]) -> None:
    arrays = {f"{i} {name}": values for i, b in enumerate(batches) for name, values in b.items()}
    np.savez(path, **arrays)


def read_batches(path: Path) -> list[Batch]:
    """Reads the batches of `write_batches`."""
    batches: dict[int, Batch] = {}
    with np.load(path) as arrays:
        for key, values in arrays.items():
            number, _, name = key.partition(" ")
            batches.setdefault(int(number), {})[name] = values
    return [batches[i] for i in range(len(batches))]


def machine() -> str:
    """Returns the processor and the Python version."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, Python {platform.python_version()}"
