"""Runs a job on rented machines with SkyPilot, as one of its managed jobs.

SkyPilot finds machines, and makes new ones after a preemption or an exit code of 42 or 43; `node`
on each of them counts these restarts in WORKDIR/launch/NAME, and ends the job.
"""

import contextlib
import dataclasses
import functools
import os
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from typing import ClassVar

from bert_jax.errors import UserError
from bert_jax.hardware import gpus
from bert_jax.launch import programs
from bert_jax.launch.job import Job, JobId, Rendering, option
from bert_jax.launch.output import say
from bert_jax.launch.preflight import Check, CheckFailedError, check_version
from bert_jax.launch.sky.node import State
from bert_jax.launch.sky.queue import exit_code, find, get, name_of
from bert_jax.launch.sky.task import gpu_words, task, tpu_slice
from bert_jax.storage.remote import open_path, put, storage_errors

_POLL = 15.0  # seconds between two questions to SkyPilot
_PATIENCE = 120.0  # seconds that a stopped job gets besides its grace, before it is cancelled
_VERSION = (0, 14)  # of the schema that tests check the task with
# Names of `compile` and of JAX that no cloud has there; H100-SXM, which is one of ours, some have.
_NOT_THERE = re.compile(
    "(nvidia|tesla|geforce)-.*|a100-(40gb?|80g|sxm4-.*)|h100-80g|rtx-4090|rtx-a6000",
    re.IGNORECASE,
)
_CLOUDS = (
    "aws|azure|gcp|ibm|lambda|scp|oci|runpod|vast|vsphere|cudo|fluidstack|paperspace|"
    "primeintellect|do|nebius|ssh|slurm|hyperbolic|seeweb|shadeform|yotta|mithril|verda"
)
# As its schema has it.
_INFRA = re.compile(rf"({_CLOUDS}|\*)(/[^/]+){{0,2}}|(kubernetes|k8s)(/.+)?", re.IGNORECASE)


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
        return self._accelerators * (tpu.devices if tpu else 1)

    @property
    def _accelerators(self) -> int:
        """GPUs or TPU slices of all nodes."""
        return self.num_nodes * int(self.accelerators.partition(":")[2] or 1)

    def check(self, job: Job) -> None:
        flag = f"--accelerators={self.accelerators}"
        if not re.fullmatch("[A-Za-z0-9_.-]+(:[1-9][0-9]*)?", self.accelerators):
            raise UserError(f"{flag}: give a name and how many each node has, such as H100:8")
        name, _, number = self.accelerators.partition(":")
        if why := gpus.why_dropped(name):
            raise UserError(f"--accelerators={why}")
        with contextlib.suppress(ValueError):  # a name of compile: H100 is none, h100-8 is
            if _NOT_THERE.fullmatch(name):
                found = dataclasses.replace(gpus.find(f"{name}-1"), per_host=int(number or 1))
            else:
                found = gpus.find(name)
            raise UserError(f"{flag}: give {gpu_words(found)}, as SkyPilot names it")
        if self.infra and not _INFRA.fullmatch(self.infra):
            raise UserError(
                f"--infra={self.infra}: give a cloud of SkyPilot, such as gcp, gcp/us-central1 or "
                "gcp/us-central1/us-central1-a"
            )
        if "---" in job.name:
            near = re.sub("-{3,}", "--", job.name)
            line = "SkyPilot takes at most two dashes in a row"
            raise UserError(f"--name={job.name}: {line}; give {near}")
        if self.num_nodes < 1:
            raise UserError(f"--num_nodes={self.num_nodes}: give at least 1")
        tpu = tpu_slice(self.accelerators)
        if tpu and (hosts := tpu.hosts * self._accelerators) > 1:
            other = "use bert-jax launch tpu run or bert-jax launch gke run"
            raise UserError(f"{flag}: TPUs of {hosts} hosts; {other}")
        for kind, variables in (("env", job.env), ("env_from", job.env_from)):
            for name in (name for name, _ in variables if name.startswith("SKYPILOT_")):
                line = "SkyPilot sets its variables itself; leave it out"
                raise UserError(f"--{kind}={name}=…: {line}")
        for name, reference in job.env_from:
            if reference != name:
                why = "SkyPilot takes a secret from the variable of its name"
                raise UserError(f"--env_from={name}={reference}: give {name}={name}: {why}")

    def checks(self, job: Job) -> Sequence[Check]:
        secrets = (
            Check(f"secret {name}", functools.partial(_secret, name)) for name, _ in job.env_from
        )
        return [Check("sky", check_sky), *secrets]

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


def check_sky() -> str:
    """Returns the version of SkyPilot; CheckFailedError if it is too old."""
    printed = programs.call(["sky", "--version"]).strip()
    check_version(printed, _VERSION, "install skypilot")
    return printed


def _secret(name: str) -> str:
    if not os.environ.get(name):
        raise CheckFailedError(f"{name} is not set", f"export {name}, which SkyPilot passes on")
    return f"{name} is set"
