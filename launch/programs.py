"""Calls gcloud, kubectl and the commands of Slurm, which users have and are logged in to."""

import contextlib
import contextvars
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from bert_jax.errors import UserError
from bert_jax.launch.output import say

_Answer = TypeVar("_Answer")
# Seconds that every program gets at most, while `answering_within` lasts.
_most: contextvars.ContextVar[float | None] = contextvars.ContextVar("most", default=None)
LIMIT = 300.0  # seconds in which a program answers; one that hangs would hang the launcher
# Variables by which Slurm's programs look at other jobs, or at fewer of them: a job that runs would
# look like one that is gone.
_HIDING = ("SQUEUE_", "SCANCEL_", "SCONTROL_", "SLURM_CLUSTERS")
_INSTALL = {
    "gcloud": "https://cloud.google.com/sdk/docs/install",
    "kubectl": "https://kubernetes.io/docs/tasks/tools",
    "sbatch": "run this on a login node of the cluster",
    "sky": "pip install 'skypilot[gcp]>=0.14', in an environment of its own",
}


class ProgramError(UserError):
    """A program failed; `reason` is its own last line, `errors` all that it printed as errors."""

    def __init__(self, words: Sequence[str], code: int, errors: str):
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        self.reason = lines[-1] if lines else f"exit code {code}"
        self.code, self.errors = code, errors
        super().__init__(f"{words[0]} {words[1] if len(words) > 1 else ''}: {self.reason}")


def call(
    words: Sequence[str],
    *,
    data: str | None = None,
    folder: Path | None = None,
    limit: float | None = LIMIT,
) -> str:
    """Runs a program to its end; returns its standard output.

    data: its standard input. folder: where it runs. limit: seconds after which it is killed; None
    for one that waits until something has ended.

    Raises:
        ProgramError: its exit code is not 0, or it did not end in time.
        UserError: it is not installed.
    """
    most = _most.get()
    limit = min((one for one in (limit, most) if one is not None), default=None)
    env = {name: value for name, value in os.environ.items() if not name.startswith(_HIDING)}
    try:
        process = subprocess.Popen(
            list(words), cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError:
        hint = how_to_install(words[0])
        raise UserError(f"{words[0]}: not found on this machine ({hint})") from None
    with process:
        try:
            printed, errors = process.communicate(data or "", timeout=limit)
        except BaseException as error:  # Ctrl-C, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # gcloud is a script that starts a Python
            if isinstance(error, subprocess.TimeoutExpired):
                raise ProgramError(words, -signal.SIGKILL, f"timed out after {limit:g} s") from None
            raise
    if process.returncode != 0:
        raise ProgramError(words, process.returncode, errors)
    return printed


def how_to_install(program: str) -> str:
    return _INSTALL.get(program, "install it")


@contextlib.contextmanager
def answering_within(seconds: float) -> Iterator[None]:
    """Gives every program that is called no more seconds than these."""
    token = _most.set(seconds)
    try:
        yield
    finally:
        _most.reset(token)


def change(words: Sequence[str], *, folder: Path | None = None, limit: float | None = LIMIT) -> str:
    """Prints a command that changes something, and calls it; see `call`."""
    say(f"$ {shlex.join(words)}")
    return call(words, folder=folder, limit=limit)


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
