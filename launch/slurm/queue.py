"""Finds a job in Slurm's queue, and how it ended."""

import dataclasses
from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.exit_codes import LOST, STOPPED
from bert_jax.launch import programs
from bert_jax.launch.job import JobId
from bert_jax.launch.programs import ProgramError
from bert_jax.launch.slurm.requeue import State
from bert_jax.storage.digest import sha256

WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
# A job in any other state, also one that is not known here, may still write to its folder.
_ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
)


@dataclasses.dataclass(frozen=True)
class QueuedJob:
    """A job that has not ended.

    where: why it waits, or its nodes. about: the values of `comment`.
    """

    number: str
    state: str
    where: str
    about: dict[str, str]

    def __str__(self) -> str:
        what = "waiting for capacity" if self.state == "PENDING" else self.state.lower()
        return f"Slurm job {self.number}: {what} {self.where}".rstrip()


def comment(of: JobId, **values: object) -> str:
    """Returns what marks a job of this name and workdir in Slurm."""
    about = {"workdir": sha256(of.folder.encode())[:16], **values}
    return "bert-jax " + " ".join(f"{key}={value}" for key, value in about.items())


def find(job: JobId) -> QueuedJob | None:
    """Returns the job of this name and workdir that has not ended; UserError if another has the
    name."""
    # --all: also of hidden partitions.
    words = ["squeue", "--me", "--all", f"--name={job.name}", "--noheader"]
    for line in programs.call([*words, "--format=%A|%T|%R|%k"]).splitlines():
        number, state, where, text = line.split("|", 3)
        if state in _ENDED:
            continue
        about = dict(word.split("=") for word in text.split()[1:] if word.count("=") == 1)
        if not text.startswith(comment(job)):
            raise UserError(
                f"--name={job.name}: Slurm job {number} has this name and is not in "
                f"{job.workdir}; choose another name"
            )
        return QueuedJob(number, state, where, about)
    return None


def exit_code(job: JobId, number: str) -> int:
    """Returns the exit code of a job that is not running."""
    state = State.read(Path(job.folder))
    if state and state.job == number and state.end is not None:
        return state.end
    if Path(job.folder, "stop").exists():  # cancelled while it waited
        return STOPPED
    try:  # ended by something else than its script
        shown = programs.call(["scontrol", "show", "job", number, "--oneliner"])
    except ProgramError:  # forgotten
        return LOST
    about = dict(word.split("=", 1) for word in shown.split() if "=" in word)
    code = int(about["ExitCode"].partition(":")[0])
    return STOPPED if about["JobState"].startswith("CANCELLED") else code or LOST
