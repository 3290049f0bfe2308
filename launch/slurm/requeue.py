"""Ends a Slurm job, or requeues it after a preemption or a failure. The batch script runs it last.

FOLDER MAX_PREEMPTIONS MAX_FAILURES CODE: the job's folder, its budgets, and srun's exit code, which
counts if a task has noted none. `state.json` counts the restarts, as Slurm's own count has all in
one.
"""

import dataclasses
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.exit_codes import LOST, STOPPED, describe, signal_of, verdict
from bert_jax.launch import programs
from bert_jax.launch.output import say
from bert_jax.launch.programs import ProgramError
from bert_jax.launch.restarts import NOT_AGAIN, Limits, Restarts
from bert_jax.launch.slurm.task import read_codes
from bert_jax.storage import json_record
from bert_jax.storage.atomic import write_text
from bert_jax.storage.regular_file import read_regular

_FILE = "state.json"
_FORM = {
    "job": str,
    "preemptions": json_record.count,
    "failures": json_record.count,
    "end": lambda value: value is None or isinstance(value, int),
}
# What squeue shows, while the script still runs, of a job that was cancelled, reached its time
# limit, or is requeued by Slurm itself.
_ENDING = "COMPLETING"


@dataclasses.dataclass(frozen=True)
class State:
    """The state after an attempt: number of the Slurm job, restarts used so far, and the exit code;
    None if the job was requeued."""

    job: str
    preemptions: int = 0
    failures: int = 0
    end: int | None = None

    @classmethod
    def read(cls, folder: Path) -> "State | None":
        """Returns the state of the last attempt; None before the end of the first."""
        try:
            record = json_record.parse(read_regular(folder / _FILE), _FORM)
            return cls(**{name: record[name] for name in _FORM})
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise UserError(
                f"{folder / _FILE}: {error}; remove it, and restarts count from 0"
            ) from None

    def write(self, folder: Path) -> None:
        write_text(folder / _FILE, json.dumps(dataclasses.asdict(self)))


def main(words: Sequence[str]) -> int:
    """Returns the job's exit code; Slurm ends this process before that if it requeues the job."""
    folder, number = Path(words[0]), os.environ["SLURM_JOB_ID"]
    preemptions, failures, status = map(int, words[1:])
    state = State.read(folder)
    if state is None or state.job != number:
        state = State(number)
    restarts, ends = Restarts(state.preemptions, state.failures), _ends(folder, number, status)
    code = verdict(map(_asked, (code for _, code in ends)))
    # Slurm itself pauses before the next attempt.
    limits = Limits(max_preemptions=preemptions, max_failures=failures, between=0.0)
    stop, is_ending = folder / "stop", _slurm_state(number) == _ENDING
    is_requeued = is_ending and _is_requeued(number)
    is_stopping = stop.exists() or (is_ending and not is_requeued)
    if (is_stopping or is_requeued) and code == LOST:
        code = STOPPED  # a requested stop is not a failure, however they ended
    is_final = code == 0 or is_stopping
    decision = NOT_AGAIN if is_final else restarts.after(code, limits)
    if code != 0:
        say(f"{describe(ends)}; {decision.reason}")
    if is_requeued:
        say(f"Slurm itself starts job {number} again")
        if code == STOPPED and not decision.again:
            stop.touch()  # then it starts no process
    ended = State(number, restarts.preemptions, restarts.failures, end=code)
    if decision.again:
        dataclasses.replace(ended, end=None).write(folder)  # before Slurm ends this process
        refused = "" if is_requeued else _requeue(number)
        if not refused:
            return code
        say(f"not requeued: {refused}")
    ended.write(folder)
    return code


def codes_folder(folder: str) -> Path:
    """Returns the folder in which the tasks of an attempt note their exit codes."""
    return Path(folder, "codes")


def _ends(folder: Path, number: str, status: int) -> list[tuple[str, int]]:
    """Returns name and exit code of each task that has noted one, and of srun if one has not."""
    codes = read_codes(codes_folder(str(folder)))
    ends = [(f"task {task}", code) for task, code in codes.items()]
    if len(codes) < int(os.environ.get("SLURM_NTASKS", 1)):
        ends.append((f"job {number}", status))
    return ends


def _asked(code: int) -> int:
    """Returns STOPPED for a process that Slurm asked to stop before it could handle that: there was
    nothing to save."""
    return STOPPED if signal_of(code) == signal.SIGTERM else code


def _requeue(number: str) -> str:
    """Requeues the job; returns why Slurm refuses to, empty if it does not."""
    try:
        programs.call(["scontrol", "requeue", number])
    except ProgramError as error:
        return " ".join(error.errors.split()) or error.reason
    return ""


def _is_requeued(number: str) -> bool:
    """Returns whether Slurm has requeued a job that is ending: it then counts a restart more than
    it told the batch script."""
    try:
        shown = programs.call(["scontrol", "show", "job", number, "--oneliner"])
    except ProgramError:
        return False
    count = re.search(r" Restarts=(\d+)", shown)
    return count is not None and int(count[1]) > int(os.environ.get("SLURM_RESTART_COUNT", 0))


def _slurm_state(number: str) -> str:
    words = ["squeue", f"--jobs={number}", "--states=all", "--noheader", "--format=%T"]
    try:
        return programs.call(words).strip()
    except ProgramError:
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
