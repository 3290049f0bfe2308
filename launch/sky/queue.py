"""Finds a job among SkyPilot's managed jobs, and how it ended."""

import dataclasses
import json
import re
import shlex

from bert_jax.errors import UserError
from bert_jax.exit_codes import FAILED, STOPPED, verdict
from bert_jax.launch import programs
from bert_jax.launch.job import JobId
from bert_jax.launch.programs import ProgramError
from bert_jax.launch.sky.node import State, codes_of

# Before the first job SkyPilot has no controller to ask, and one without work for minutes is
# stopped: then it says this, too, unless it is to start it again (`--refresh`).
_NONE = "No in-progress managed jobs"
_ASK = ("sky", "jobs", "queue", "--all", "--output=json")


@dataclasses.dataclass(frozen=True)
class ManagedJob:
    """A job in SkyPilot: its number, its name there, its state."""

    number: int
    name: str
    state: str

    @property
    def is_over(self) -> bool:
        return self.state in ("SUCCEEDED", "CANCELLED") or self.state.startswith("FAILED")

    def __str__(self) -> str:
        return f"SkyPilot job {self.number}: {self.state.lower().replace('_', ' ')}"


def name_of(job: JobId, digest: str) -> str:
    """Returns the name in SkyPilot of a job with this digest, see `Job.digest`."""
    return f"{job.name}-{digest}"


def find(job: JobId) -> ManagedJob | None:
    """Returns the newest job of this name; None if there is none."""
    named = re.compile(name_of(job, "[0-9a-f]{16}"))
    mine = [one for one in _all() if named.fullmatch(one.name)]
    return max(mine, key=lambda one: one.number, default=None)


def _all() -> list[ManagedJob]:
    """Returns all jobs as SkyPilot lists them; UserError if it prints anything else."""
    try:
        printed = programs.call(_ASK)
    except ProgramError as error:
        if _NONE not in error.errors:
            raise
        try:
            printed = programs.call([*_ASK, "--refresh"], limit=None)
        except ProgramError as again:
            if _NONE not in again.errors:
                raise
            return []
    try:
        jobs = json.loads(printed)
        return [ManagedJob(j["job_id"], j["job_name"] or "", j["status"]) for j in jobs]
    except (ValueError, TypeError, LookupError):
        line = f"{shlex.join(_ASK)}: printed no list of jobs, but {printed[:60]!r}"
        raise UserError(line) from None


def get(job: JobId) -> ManagedJob:
    """Returns what `find` does; UserError if there is none."""
    if (found := find(job)) is None:
        raise UserError(f"--name={job.name}: no such job; `sky jobs queue` lists those there are")
    return found


def exit_code(job: JobId, state: str) -> int:
    """Returns the exit code of a job that has ended in a state, from what its nodes noted."""
    if state == "SUCCEEDED":
        return 0
    attempt = State.read(job.folder)
    noted = codes_of(job.folder, attempt.attempt) if attempt else []
    return verdict(noted) or (STOPPED if state == "CANCELLED" else FAILED)
