"""Finds a job among SkyPilot's managed jobs, and how it ended."""

import dataclasses
import json
import re
import shlex

from bert_jax.errors import UserError
from bert_jax.exit_codes import FAILED, LOST, STOPPED, verdict
from bert_jax.launch import programs
from bert_jax.launch.job import JobId
from bert_jax.launch.programs import ProgramError
from bert_jax.launch.sky.node import State, codes_of, exists
from bert_jax.storage.digest import sha256

# Before the first job SkyPilot has no controller to ask, and one without work for minutes is
# stopped: then it says the first. Asked to start one that is not there (`--refresh`), the second.
_NONE = re.compile(r"No in-progress managed jobs|sky-jobs-controller-\S+ does not exist")
_ASK = ("sky", "jobs", "queue", "--all", "--all-users", "--output=json")


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
    return f"{job.name}-{sha256(job.folder.encode())[:8]}-{digest}"


def find(job: JobId, *, is_new: bool = False) -> ManagedJob | None:
    """Returns the newest job of this name and workdir; None if there is none; UserError if this one
    is not of the SkyPilot that is asked, or, unless it may be new, one of this name runs in another
    workdir, which is likely meant."""
    named = re.compile(f"{job.name}-[0-9a-f]{{8}}-[0-9a-f]{{16}}")
    found = sorted((one for one in _all() if named.fullmatch(one.name)), key=lambda j: j.number)
    if mine := [one for one in found if one.name.startswith(name_of(job, ""))]:
        return mine[-1]
    if not is_new and (others := [one.number for one in found if not one.is_over]):
        line = f"SkyPilot job {others[-1]} has this name and is not in {job.workdir}"
        raise UserError(f"--name={job.name}: {line}; give the workdir of that job")
    state = State.read(job.folder)
    codes = codes_of(job.folder, state.attempt) if state else [FAILED]
    if verdict(codes or [LOST]) in (STOPPED, LOST) and not exists(f"{job.folder}/stop"):
        line = f"the SkyPilot here has no such job, but {job.folder} has one that has not ended"
        hint = "use the machine that submitted it, or if it has ended remove that folder"
        raise UserError(f"--name={job.name}: {line}; {hint}")
    return None


def _all() -> list[ManagedJob]:
    """Returns all jobs as SkyPilot lists them; UserError if it prints anything else."""
    printed = "[]"
    for words, limit in ((_ASK, programs.LIMIT), ((*_ASK, "--refresh"), None)):
        try:
            printed = programs.call(words, limit=limit)
            break
        except ProgramError as error:
            if not _NONE.search(error.errors):
                raise
    try:
        jobs = json.loads(printed)
        return [ManagedJob(j["job_id"], j["job_name"] or "", j["status"]) for j in jobs]
    except (ValueError, TypeError, LookupError):
        line = f"{shlex.join(_ASK)}: printed no list of jobs, but {printed[:60]!r}"
        raise UserError(line) from None


def get(job: JobId) -> ManagedJob:
    """Returns what `find` does; UserError if there is none."""
    if (found := find(job)) is None:
        raise UserError(f"--name={job.name}: no such job in {job.workdir}; check both")
    return found


def exit_code(job: JobId, state: str) -> int:
    """Returns the exit code of a job that has ended in a state, from what its nodes noted."""
    if state == "SUCCEEDED":
        return 0
    attempt = State.read(job.folder)
    noted = codes_of(job.folder, attempt.attempt) if attempt else []
    return verdict(noted) or (STOPPED if state == "CANCELLED" else FAILED)
