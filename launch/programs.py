"""Calls gcloud, kubectl and the commands of Slurm, which users have and are logged in to."""

import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from bert_jax.data_pipeline.errors import UserError
from bert_jax.launch.output import say

_Answer = TypeVar("_Answer")
_INSTALL = {
    "gcloud": "https://cloud.google.com/sdk/docs/install",
    "kubectl": "https://kubernetes.io/docs/tasks/tools",
    "sbatch": "run this on a login node of the cluster",
}


class ProgramError(UserError):
    """A program failed; `reason` is its own last line, `errors` all that it printed as errors."""

    def __init__(self, words: Sequence[str], code: int, errors: str):
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        self.reason = lines[-1] if lines else f"exit code {code}"
        self.code, self.errors = code, errors
        super().__init__(f"{words[0]} {words[1] if len(words) > 1 else ''}: {self.reason}")


def call(words: Sequence[str], *, data: str | None = None, folder: Path | None = None) -> str:
    """Runs a program to its end; returns its standard output.

    data: its standard input. folder: where it runs.

    Raises:
        ProgramError: its exit code is not 0.
        UserError: it is not installed.
    """
    try:
        done = subprocess.run(
            list(words), input=data or "", cwd=folder, capture_output=True, check=False,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
    except FileNotFoundError:
        hint = _INSTALL.get(words[0], "install it")
        raise UserError(f"{words[0]}: not found on this machine ({hint})") from None
    if done.returncode != 0:
        raise ProgramError(words, done.returncode, done.stderr)
    return done.stdout


def change(words: Sequence[str], *, folder: Path | None = None) -> str:
    """Prints a command that changes something, and calls it; see `call`."""
    say(f"$ {shlex.join(words)}")
    return call(words, folder=folder)


def answer(ask: Callable[[], _Answer], pause: float) -> _Answer:
    """Returns what a question to a cluster gives, asked again as long as it does not answer.

    pause: seconds between two questions.
    """
    shown = ""
    while True:
        try:
            return ask()
        except ProgramError as error:
            if error.reason != shown:
                say(f"no answer ({error.reason}); asking again")
            shown = error.reason
        time.sleep(pause)
