"""Runs a job on rented machines with SkyPilot, as one of its managed jobs.

SkyPilot finds machines, and makes new ones after a preemption or an exit code of 42 or 43; `node`
on each of them counts these restarts in WORKDIR/launch/NAME, and ends the job.
"""

import dataclasses
import shlex
import subprocess
import time
from collections.abc import Sequence
from typing import ClassVar

from bert_jax.errors import UserError
from bert_jax.launch import programs
from bert_jax.launch.job import Job, JobId, Rendering, option
from bert_jax.launch.output import say
from bert_jax.launch.preflight import Check
from bert_jax.launch.sky.checks import refuse, sky_checks
from bert_jax.launch.sky.node import State
from bert_jax.launch.sky.queue import exit_code, find, get, name_of
from bert_jax.launch.sky.task import of_a_node, task, tpu_slice
from bert_jax.storage.remote import open_path, put, storage_errors

_POLL = 15.0  # seconds between two questions to SkyPilot
_PATIENCE = 120.0  # seconds that a stopped job gets besides its grace, before it is cancelled


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sky:
    """Rented machines, by SkyPilot."""

    needs_workdir: ClassVar[bool] = True
    needs_bucket: ClassVar[bool] = True
    needs_topology: ClassVar[bool] = False
    has_image: ClassVar[bool] = False

    accelerators: str = option("", "GPUs of each node, such as H100:8", required=True)
    num_nodes: int = option(1, "number of nodes")
    use_spot: bool = option(False, "rent spot machines")
    infra: str = option("", "where, such as gcp/us-central1 (default: SkyPilot chooses)")

    @property
    def devices(self) -> int:
        tpu = tpu_slice(self.accelerators)
        return self.num_nodes * of_a_node(self.accelerators) * (tpu.devices if tpu else 1)

    def check(self, job: Job) -> None:
        refuse(job, self.accelerators, self.num_nodes, self.infra)

    def checks(self, job: Job) -> Sequence[Check]:
        return sky_checks(job)

    def render(self, job: Job) -> Rendering:
        file, archive = f"{job.name}.yaml", f"{job.bundle.name}.tar"
        text = task(job, name_of(job, job.digest(self)), **dataclasses.asdict(self))
        secrets = (f"--secret={name}" for name, _ in job.env_from)
        return Rendering(
            files={archive: job.bundle.archive, file: text},
            commands=(("sky", "jobs", "launch", "--yes", "--detach-run", *secrets, file),),
        )

    def is_running(self, job: Job) -> bool:
        found = find(job, is_new=True)
        if found is None or found.is_over:
            return False
        if found.name != name_of(job, job.digest(self)):
            stop = shlex.join(("stop", f"--name={job.name}", f"--workdir={job.workdir}"))
            line = f"SkyPilot job {found.number} runs another command, or with other flags"
            raise UserError(f"--name={job.name}: {line}; end it first: bert-jax launch sky {stop}")
        return True

    def run(self, job: Job) -> int:
        if not self.is_running(job):
            say("SkyPilot makes its controller first if it has none, which takes minutes")
            self.render(job).run(limit=None)
        say("SkyPilot restarts the job; this command watches it, and may be ended")
        self.logs(job, follow=True)
        while not (found := programs.answer(lambda: get(job), _POLL)).is_over:
            time.sleep(_POLL)
        code = exit_code(job, found.state)
        say(f"{found}, ended with {code}")
        return code

    def status(self, job: JobId) -> str:
        lines, state = [str(get(job))], State.read(job.folder)
        if state:
            used = f"{state.preemptions} preemptions, {state.failures} failures so far"
            lines.append(f"attempt {state.attempt}; {used}")
        return "\n".join(lines)

    def logs(self, job: JobId, *, follow: bool) -> None:
        words = ["--tail=0", "--follow" if follow else "--no-follow", str(get(job).number)]
        subprocess.run(["sky", "jobs", "logs", *words], check=False)  # it says what is wrong

    def stop(self, job: JobId) -> None:
        if (found := find(job)) is None:
            say(f"{job.name}: not there")
            return
        state = State.read(job.folder)
        until = time.monotonic() + (state.grace if state else 0) + _PATIENCE
        if found.state == "RUNNING":
            put(f"{job.folder}/stop", b"")  # the first node looks for it
            say(f"{job.name}: asked to save")
        while found and not found.is_over:
            if found.state not in ("RUNNING", "CANCELLING") or time.monotonic() > until:
                programs.change(["sky", "jobs", "cancel", "--yes", str(found.number)])
            time.sleep(_POLL)
            found = programs.answer(lambda: find(job), _POLL)
        say(f"{job.name}: has ended; SkyPilot gives its machines back")

    def delete(self, job: JobId) -> None:
        self.stop(job)
        with storage_errors(job.folder):
            if (folder := open_path(job.folder)).exists():
                folder.rmtree()
                say(f"{job.folder}: removed")
