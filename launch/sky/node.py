"""Runs the process of one node of a SkyPilot job, within the budgets of its restarts.

FOLDER MAX_PREEMPTIONS MAX_FAILURES GRACE LOST COMMAND…: the job's folder in the workdir, its
budgets, the seconds that its process may take to save, which `stop` waits for, the code that its
43 becomes: 42 where peers are taken away, a preemption; the process. SkyPilot
recovers a job after exit codes 42 and 43 as often as they come, on new nodes, so the count is kept
in FOLDER: `state.json`, `codes/ATTEMPT/NODE`, and `stop`, which marks a job that was asked to stop.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from bert_jax.errors import UserError
from bert_jax.exit_codes import FAILED, FINAL, LOST, STOPPED, describe, signal_of, verdict
from bert_jax.launch.output import say
from bert_jax.launch.restarts import NOT_AGAIN, Limits, Restarts
from bert_jax.storage import json_record
from bert_jax.storage.remote import STORAGE_RETRIES, open_path, put, storage_errors
from bert_jax.storage.retry import retry

PORT = 8476  # of the coordinator, on the first node; JAX's own default
_POLL = 15.0  # seconds between two looks for `stop`
_NUMBERS = ("grace", "attempt", "preemptions", "failures")
_FORM = {"task": str} | dict.fromkeys(_NUMBERS, json_record.count)


@dataclasses.dataclass(frozen=True)
class State:
    """An attempt: its SKYPILOT_TASK_ID, which SkyPilot keeps when it recovers a job, the seconds
    that it may take to save, its number from 1, and the restarts used before it."""

    task: str
    grace: int
    attempt: int = 1
    preemptions: int = 0
    failures: int = 0

    @classmethod
    def read(cls, folder: str) -> "State | None":
        """Returns the newest attempt, None before the first; UserError if it cannot be read."""
        path = open_path(f"{folder}/state.json")
        with storage_errors(path):
            try:
                found = json_record.read_if_there(path, _FORM)
            except ValueError as error:
                line = f"{path}: {error}; remove it, and restarts count from 0"
                raise UserError(line) from None
        return found and cls(**{name: found[name] for name in _FORM})


def codes_of(folder: str, attempt: int) -> list[int]:
    """Returns the exit codes that the nodes of an attempt have noted, by node."""
    with storage_errors(folder):
        codes = open_path(f"{folder}/codes/{attempt}")
        paths = sorted(codes.iterdir(), key=lambda path: path.name) if codes.is_dir() else []
        return [int(json_record.read_json(path, json_record.count)) for path in paths]


def place(env: dict[str, str]) -> list[str]:
    """Returns the flags that tell a process its place, by SkyPilot's variables; none on a single
    node."""
    first, count = env["SKYPILOT_NODE_IPS"].split()[0], env["SKYPILOT_NUM_NODES"]
    flags = [f"--coordinator={first}:{PORT}", f"--num_processes={count}"]
    return [*flags, f"--process_id={env['SKYPILOT_NODE_RANK']}"] if int(count) > 1 else []


def main(words: Sequence[str]) -> int:
    """Returns the exit code of this node: 42 or 43 only if the job may be started again."""
    folder, preemptions, failures, grace, lost, *command = words
    # SkyPilot takes longer to make new nodes than any pause would be.
    most = {"max_preemptions": int(preemptions), "max_failures": int(failures)}
    limits, rank = Limits(**most, between=0.0), os.environ["SKYPILOT_NODE_RANK"]
    task = os.environ["SKYPILOT_TASK_ID"]
    if rank == "0" and (code := _begin(folder, task, int(grace), int(lost), limits)):
        return code
    command += place(dict(os.environ))
    code = _run(f"{folder}/stop" if rank == "0" else "", int(lost), command)
    state = State("", 0, attempt=0)
    try:
        state = State.read(folder) or state
        _put(f"{folder}/codes/{state.attempt}/{rank}", str(code))
    except UserError as error:  # the next attempt counts what is not noted as a preemption
        say(str(error))
    if code == 0:
        return code
    restarts = Restarts(state.preemptions, state.failures)
    asked = dataclasses.replace(NOT_AGAIN, reason=f"{NOT_AGAIN.reason}: asked to stop")
    decision = asked if exists(f"{folder}/stop") else restarts.after(code, limits)
    say(f"{describe([(f'node {rank}', code)])}; {decision.reason}")
    return code if decision.again or code in FINAL else FAILED


def _begin(folder: str, task: str, grace: int, lost: int, limits: Limits) -> int:
    """Counts an attempt; returns an exit code if there must be none, else 0."""
    state = State.read(folder)
    if state is None or state.task != task:
        with storage_errors(folder):
            open_path(f"{folder}/stop").unlink(missing_ok=True)  # of an earlier job
            if (noted := open_path(f"{folder}/codes")).exists():
                noted.rmtree()
        new = State(task, grace)
    else:
        codes = codes_of(folder, state.attempt)
        code = verdict(codes) or STOPPED  # nodes that were taken away have noted nothing
        if code == lost and LOST in codes:
            code = LOST  # a process was killed, and its peers lost it
        restarts = Restarts(state.preemptions, state.failures)
        if not (decision := restarts.after(code, limits)).again:
            say(f"attempt {state.attempt} ended with {code}; {decision.reason}")
            return FAILED
        new = State(task, grace, state.attempt + 1, restarts.preemptions, restarts.failures)
    _put(f"{folder}/state.json", json.dumps(dataclasses.asdict(new)))
    return 0


def _put(path: str, text: str) -> None:
    """Writes a file, again if the bucket does not answer; UserError if it still does not."""
    with storage_errors(path, "cannot be written"):
        retry(lambda: put(path, text.encode()), STORAGE_RETRIES)


def _run(stop: str, lost: int, command: Sequence[str]) -> int:
    """Returns the exit code of a process, with a signal as `verdict` has it, and for 43 `lost`;
    asks it to save once the file `stop` is there."""
    asked: list[int] = []
    process = subprocess.Popen(command)

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        process.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, ask)
    while True:
        try:
            code = process.wait(_POLL)
            break
        except subprocess.TimeoutExpired:
            if stop and not asked and exists(stop):
                ask(signal.SIGTERM, None)
    if asked and signal_of(code) == signal.SIGTERM:
        return STOPPED  # before it could save anything
    return lost if code == LOST else verdict([code])


def exists(path: str) -> bool:
    """Returns whether a file is there, as far as the bucket answers."""
    try:
        with storage_errors(path):
            return bool(open_path(path).exists())
    except UserError:  # asked again at the next look
        return False


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as failure:
        say(str(failure))
        sys.exit(FAILED)
