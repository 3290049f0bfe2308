"""Runs a job on TPU slices (v2 to v6e) as queued resources, created and deleted with gcloud.

An agent on every host runs the processes and restarts them (`launch/tpu/agent`); a launcher creates
the machines, and creates them again after a preemption (`launch/tpu/watch`). They meet in WORKDIR/
launch/NAME (`launch/tpu/job_records`). Nothing needs SSH.
"""

# Over 300 lines: one class, which has a method for each command.

import base64
import dataclasses
import functools
import json
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from bert_jax.errors import UserError
from bert_jax.exit_codes import STOPPED
from bert_jax.hardware.slices import Slice
from bert_jax.launch import programs
from bert_jax.launch.job import Job, JobId, Rendering, option
from bert_jax.launch.output import say
from bert_jax.launch.preflight import Check
from bert_jax.launch.programs import ProgramError
from bert_jax.launch.tpu import log_pieces, submit, teardown
from bert_jax.launch.tpu.archive import agent_archive
from bert_jax.launch.tpu.bucket import Bucket, BucketError
from bert_jax.launch.tpu.checks import check_references, default_project, tpu_checks
from bert_jax.launch.tpu.job_records import Records, Snapshot
from bert_jax.launch.tpu.queued_resources import (
    COMMAND,
    OWNER,
    QueuedResources,
    api_error,
    resource_name,
)
from bert_jax.launch.tpu.standing import report
from bert_jax.launch.tpu.submission import RESOURCE, ROOT, Submission
from bert_jax.launch.tpu.watch import Watcher

_ALIVE = (
    "a job that ends needs no launcher to give its machines back; after a preemption they are "
    "created again only while this command runs, or once it is run again"
)
# Cloud TPU documentation, "TPU software versions".
_RUNTIMES = {
    "v2": "tpu-ubuntu2204-base", "v3": "tpu-ubuntu2204-base", "v4": "tpu-ubuntu2204-base",
    "v5e": "v2-alpha-tpuv5-lite", "v5p": "v2-alpha-tpuv5", "v6e": "v2-alpha-tpuv6e",
}  # fmt: skip
# Seconds for which a token is used: gcloud prints one that it has kept while that is valid for five
# more minutes.
_LIFE = 240.0
_STARTUP = Path(__file__).parent / "agent" / "startup.sh"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tpu:
    """TPU slices of Google Cloud, each a queued resource."""

    needs_workdir: ClassVar[bool] = True
    needs_bucket: ClassVar[bool] = True
    needs_topology: ClassVar[bool] = True
    devices: ClassVar[int] = 0  # of the job's topology
    has_image: ClassVar[bool] = False

    zone: str = option("", "zone of the TPUs, such as us-west4-a", always=True, required=True)
    project: str = option("", "Google Cloud project (default: gcloud's)", always=True)
    spot: bool = option(False, "machines that may be preempted, at a lower price")
    reserved: bool = option(False, "machines of a reservation")
    service_account: str = option("", "account of the machines (default: Compute Engine's)")
    network: str = option("", "network of the machines (default: default)")
    subnetwork: str = option("", "subnetwork of the machines")
    internal_ips: bool = option(False, "machines without external addresses")
    runtime_version: str = option("", "image of the machines (default: the one of the TPU version)")
    poll: int = option(
        10, "seconds between two polls of the job", always=True, identifies=False, least=1
    )

    def check(self, job: Job) -> None:
        generation = _slices(job).generation
        if generation.name not in _RUNTIMES:
            raise UserError(
                f"--topology={_slices(job).name}: queued resources have {', '.join(_RUNTIMES)}; "
                f"{generation.name} is available through GKE: bert-jax launch gke run"
            )
        if self.spot and self.reserved:
            raise UserError("--spot with --reserved: reserved machines are not spot; give one")
        check_references(job.env_from)

    def checks(self, job: Job) -> Sequence[Check]:
        return tpu_checks(
            job, self._api(job), self._place(), self.zone, _type_of(job), self.service_account
        )

    def render(self, job: Job) -> Rendering:
        archive, request = f"{job.bundle.name}.tar", self._request(job, 1, "", number=1)
        record = f"{job.folder}/0001/job.json"
        return Rendering(
            files={
                archive: job.bundle.archive,
                "job.json": _json(self._submission(job, first=1).to_json()),
                **request.files,
            },
            commands=(
                ("gcloud", "storage", "cp", archive, f"{job.folder}/{archive}"),
                # Refused if a job of this name has left one, before machines are requested.
                ("gcloud", "storage", "cp", "--if-generation-match=0", "job.json", record),
                *request.commands,
            ),
            comment="Where an earlier attempt has left a record, first: "
            + _line(job, "delete", self._place()),
        )

    def _request(self, job: Job, run: int, submission: str, number: int) -> Rendering:
        """Returns the request for machines; the files become metadata of each of them."""
        name = resource_name(job.name, number)
        about = {"records": job.folder, "run": run, "number": number, "name": name}
        if submission:  # of a launcher, not of commands that are run by hand
            about["submission"] = submission
        return Rendering(
            files={
                "startup.sh": _STARTUP.read_text(encoding="utf-8"),
                "agent.txt": base64.encodebytes(agent_archive()),
                "resource.json": _json(about),
                "owner.txt": job.folder,
            },
            commands=((*COMMAND, "create", name, *self._options(job, name)),),
        )

    def _options(self, job: Job, name: str) -> Iterator[str]:
        slices = _slices(job)
        yield from self._place()
        yield f"--accelerator-type={_type_of(job)}"
        yield f"--runtime-version={self.runtime_version or _RUNTIMES[slices.generation.name]}"
        if slices.count == 1:
            yield f"--node-id={name}"
        else:
            yield f"--node-count={slices.count}"
            yield f"--node-prefix={name}"
        for flag in ("spot", "reserved", "internal_ips"):
            if getattr(self, flag):
                yield f"--{flag.replace('_', '-')}"
        for flag in ("network", "subnetwork", "service_account"):
            if value := getattr(self, flag):
                yield f"--{flag.replace('_', '-')}={value}"
        yield "--scopes=https://www.googleapis.com/auth/cloud-platform"
        yield f"--labels=bert-jax={job.name}"
        yield (
            f"--metadata-from-file=startup-script=startup.sh,bert-jax-agent=agent.txt,"
            f"{RESOURCE}=resource.json,{OWNER}=owner.txt"
        )
        yield "--async"

    def _place(self) -> tuple[str, ...]:
        return _place_flags(self.zone, self.project)

    def _other_place(self, snapshot: Snapshot) -> tuple[str, ...]:
        """Returns the flags of the place of a submission's machines; none if it is this one, or not
        recorded."""
        found = snapshot.submission
        if found is None or not found.zone:
            return ()
        project = found.project and (self.project or default_project())
        is_here = (found.zone, found.project) == (self.zone, project)
        return () if is_here else _place_flags(found.zone, found.project)

    def _check_place(self, job: JobId, snapshot: Snapshot) -> None:
        """Raises UserError for a place in which no machine of the job can be found."""
        if other := self._other_place(snapshot):
            raise UserError(
                f"{shlex.join(self._place())}: the machines of {job.name} are in another zone or "
                f"project; give {shlex.join(other)}"
            )

    def _digest(self, job: Job, snapshot: Snapshot) -> str:
        """Returns the digest of a job: that of a submission, if the same command with the same
        project has made it, which one command names and another has from gcloud."""
        found = snapshot.submission
        if found and found.project:
            for project in ("", found.project):
                digest = job.digest(dataclasses.replace(self, project=project))
                if digest == found.digest:
                    return digest
        return job.digest(self)

    def _submission(self, job: Job, first: int, before: Snapshot | None = None) -> Submission:
        """before: of the newest submission of the job's name."""
        return Submission(
            digest=self._digest(job, before) if before else job.digest(self),
            topology=_slices(job).name,
            hosts=_slices(job).hosts,
            first=first,
            bundle=job.bundle.digest,
            version=job.bundle.version,
            words=job.words(ROOT),
            python_path=job.bundle.python_path(ROOT),
            env=job.env,
            env_from=job.env_from,
            limits=job.limits,
            zone=self.zone,
            project=self.project,
        )

    def _api(self, job: JobId, of: tuple[int, str] | None = None) -> QueuedResources:
        """of: number and id of the submission that resources are requested for."""
        request = None
        if isinstance(job, Job) and of is not None:
            request = functools.partial(self._request, job, *of)
        return QueuedResources(job.name, job.folder, self._place(), request)

    def is_running(self, job: Job) -> bool:
        newest = submit.newest(_bucket(job))
        return newest is not None and self._is_current(job, newest[1])

    def _is_current(self, job: Job, snapshot: Snapshot) -> bool:
        # Until a launcher has reported the end, there may be machines.
        if not snapshot.reported and (other := self._other_place(snapshot)):
            has = "may have" if snapshot.end else "has"
            raise UserError(
                f"--name={job.name}: {has} machines in another zone or project; give "
                f"{shlex.join(other)}, or end it there first: {_line(job, 'stop', other)}"
            )
        try:
            return submit.is_current(snapshot, self._submission(job, 1, snapshot))
        except submit.OtherCommandError as error:
            raise UserError(
                f"--name={job.name}: runs another command, or on other machines "
                f"({error.topology}); end it first: {_line(job, 'stop', self._place())}"
            ) from None

    def run(self, job: Job) -> int:
        bucket = _bucket(job)
        newest = submit.newest(bucket)
        wanted = self._submission(job, 1, newest[1] if newest else None)
        if newest and self._is_current(job, newest[1]):
            records = newest[0]
            say(f"{job.name}: exists; watching it")
        else:
            archive, project = job.bundle.archive, self.project or default_project()
            wanted = dataclasses.replace(wanted, project=project)
            records = submit.submit(job.name, bucket, self._api(job), newest, wanted, archive)
        found = records.submission()
        if found is None or found.digest != wanted.digest:
            raise UserError(f"--name={job.name}: was just deleted by another command; run again")
        say(_ALIVE)
        say(f"`{_line(job, 'stop', self._place())}` saves and ends it")
        api = self._api(job, (records.run, found.id))
        watcher = Watcher(job.name, records, api, say, poll=self.poll, submission=found.id)
        watcher.claim()
        try:
            end = watcher.run()
        finally:
            watcher.release()
        if end.code not in (0, STOPPED):
            log_pieces.print_last(records)
        say(f"{job.name}: ended with {end.code} ({end.why}); no machine exists")
        records.report(found.id)
        return end.code

    def status(self, job: JobId) -> str:
        _, snapshot = _existing(job)
        self._check_place(job, snapshot)
        return report(job.name, self._api(job).list(), snapshot)

    def logs(self, job: JobId, *, follow: bool) -> None:
        records, snapshot = _existing(job)
        printer = log_pieces.Printer(records)
        printer.print_written()
        while follow and snapshot.end is None and snapshot.submission:
            time.sleep(self.poll)
            snapshot = records.snapshot()
            printer.print_new(snapshot)
        printer.print_rest()

    def stop(self, job: JobId) -> None:
        records, snapshot = _existing(job)
        self._check_place(job, snapshot)
        teardown.stop(job.name, records, self._api(job), poll=self.poll)
        say(f"{job.name}: has ended; no machine exists")

    def delete(self, job: JobId) -> None:
        bucket = _bucket(job)
        if newest := submit.newest(bucket):
            self._check_place(job, newest[1])
        teardown.remove(job.name, bucket, self._api(job), poll=self.poll)


def _line(job: JobId, verb: str, place: Sequence[str]) -> str:
    flags = (f"--name={job.name}", f"--workdir={job.workdir}", *place)
    return shlex.join(("bert-jax", "launch", "tpu", verb, *flags))


def _place_flags(zone: str, project: str) -> tuple[str, ...]:
    return (*((f"--project={project}",) if project else ()), f"--zone={zone}")


def _slices(job: Job) -> Slice:
    if job.topology is None:
        raise UserError("--topology=… is missing")
    return job.topology


def _type_of(job: Job) -> str:
    """Returns Cloud TPU's name of one slice."""
    name = dataclasses.replace(_slices(job), count=1).name
    return name.replace("v5e-", "v5litepod-")


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"


class Login:
    """Access tokens of the account that the user is logged in with at gcloud."""

    def __init__(self) -> None:
        self._token, self._until = "", 0.0

    def token(self) -> str:
        """Raises BucketError if gcloud has none: without a login, or without a network."""
        if time.time() > self._until:  # a clock that also counts while a laptop sleeps
            try:
                words = ["gcloud", "auth", "print-access-token", "--quiet"]
                self._token = programs.call(words).strip()
            except ProgramError as error:
                reason = api_error(error)
                raise BucketError(
                    f"gcloud: no access token ({reason}); to log in: gcloud auth login"
                ) from None
            self._until = time.time() + _LIFE
        return self._token


_login = functools.cache(Login)


def _bucket(job: JobId) -> Bucket:
    return Bucket(job.folder, _login().token)


def _existing(job: JobId) -> tuple[Records, Snapshot]:
    newest = submit.newest(_bucket(job))
    if newest is None:
        raise UserError(f"--name={job.name}: no such job in {job.workdir}; check both")
    return newest
