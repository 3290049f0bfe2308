"""Contenders that train in processes of their own and take turns: for train_cpu.py, train_gpu.py.

The process that compares keeps a line to each contender: it writes a number and gets, as a line of
JSON, the seconds that so many steps took and their losses. Who is not asked waits, without using a
processor.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

Batch = dict[str, np.ndarray]
Losses = list[float]
Take = Callable[[int], Losses]  # trains so many steps to the end


class Contender:
    """One of the processes."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]):
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def steps(self, count: int) -> tuple[float, Losses]:
        """Seconds that so many steps took, and their losses.

        Raises:
            ChildProcessError: the process has ended; what it said went to standard error.
        """
        seconds, losses = self.ask(str(count))
        return seconds, losses

    def ask(self, question: str) -> Any:
        """Its answer to one line; raises ChildProcessError as `steps` does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{question}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # read on: the end of what it said is the news
        answer = self._process.stdout.readline()
        if not answer:
            raise ChildProcessError(f"a contender ended with exit code {self._process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        """Lets it end."""
        self._process.communicate()


def talk_apart() -> TextIO:
    """Where a contender's answers go; whatever libraries print goes to standard error from now."""
    talk = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return talk


def answer(talk: TextIO, take: Take, others: dict[str, Callable[[], object]] | None = None) -> None:
    """A contender's side, until nobody asks any more.

    others: what it answers to a word in place of a number.
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
    """What `write_batches` wrote."""
    batches: dict[int, Batch] = {}
    with np.load(path) as arrays:
        for key, values in arrays.items():
            number, _, name = key.partition(" ")
            batches.setdefault(int(number), {})[name] = values
    return [batches[i] for i in range(len(batches))]


def machine() -> str:
    """The processor and the Python."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, Python {platform.python_version()}"
