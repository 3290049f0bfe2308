"""Runs a job on TPU slices of a GKE cluster, with JobSet and, in a queue, with Kueue.

JobSet starts, restarts and ends the job with no launcher alive, and the autoscaler takes back nodes
without pods. `run` submits and watches.
"""

import dataclasses
import json
import re
import shlex
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from bert_jax.errors import UserError
from bert_jax.exit_codes import LOST, STOPPED, verdict
from bert_jax.hardware.slices import Slice
from bert_jax.launch import programs
from bert_jax.launch.gke import manifest
from bert_jax.launch.gke.checks import gke_checks, queue_reason
from bert_jax.launch.gke.kubectl import Kubectl, condition
from bert_jax.launch.gke.logs import PodLogs
from bert_jax.launch.gke.manifest import DIGEST, NAME, WORKDIR
from bert_jax.launch.job import Job, JobId, Rendering, check_image, option
from bert_jax.launch.output import say
from bert_jax.launch.preflight import Check
from bert_jax.launch.restarts import UNLIMITED

_POLL = 5.0  # seconds between two questions to the cluster
_MAX_CONFIG = 1_000_000  # bytes of a ConfigMap
_MAX_HOSTS = 9216 // 4  # of the largest slice; kubectl's default is to print the logs of five
_KINDS = "jobsets,jobs,pods,configmaps"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gke:
    """TPU slices of a GKE cluster that has JobSet."""

    needs_workdir: ClassVar[bool] = False
    needs_bucket: ClassVar[bool] = True
    needs_topology: ClassVar[bool] = True
    devices: ClassVar[int] = 0  # of the job's topology
    has_image: ClassVar[bool] = True

    context: str = option("", "context of kubectl (default: the current one)", always=True)
    namespace: str = option("", "namespace (default: that of the context)", always=True)
    image: str = option("", "image with bert-jax, REPOSITORY@sha256:…", required=True)
    queue: str = option("", "LocalQueue of Kueue that admits the job")
    service_account: str = option("", "Kubernetes service account with access to the bucket")
    spot: bool = option(False, "run on spot nodes")
    reservation: str = option("", "run on nodes of this reservation")
    coarse_restarts: bool = option(
        False, "one budget for preemptions and failures, all that JobSet before 0.10 can have"
    )

    @property
    def _kubectl(self) -> Kubectl:
        return Kubectl(self.context, self.namespace)

    def check(self, job: Job) -> None:
        check_image(self.image)
        if self.spot and self.reservation:
            raise UserError("--spot with --reservation: reserved nodes are not spot; give one")
        tpu = _slice(job)
        if tpu.generation.name not in manifest.ACCELERATORS:
            raise UserError(
                f"--topology={tpu.name}: gke has {', '.join(manifest.ACCELERATORS)}; use "
                "bert-jax launch tpu run"
            )
        for name, reference in job.env_from:
            if not re.fullmatch(r"[a-z0-9.-]+/[\w.-]+", reference):
                raise UserError(
                    f"--env_from={name}={reference}: give SECRET/KEY of a Kubernetes secret"
                )
        if job.bundle.files and len(job.bundle.archive) > _MAX_CONFIG:
            raise UserError(
                f"{', '.join(job.bundle.files)} and the modules beside it exceed {_MAX_CONFIG:,} "
                "bytes, the limit of a ConfigMap; put them into the image"
            )

    def checks(self, job: Job) -> Sequence[Check]:
        labels = manifest.node_labels(_slice(job), spot=self.spot, reservation=self.reservation)
        return gke_checks(
            self._kubectl, job, self.render(job), labels, self.queue, self.service_account
        )

    def render(self, job: Job) -> Rendering:
        job_set = manifest.job_set(
            job, _slice(job), digest=job.digest(self), image=self.image, queue=self.queue,
            service_account=self.service_account, coarse=self.coarse_restarts, spot=self.spot,
            reservation=self.reservation,
        )  # fmt: skip
        objects = {"jobset.json": job_set}
        words = [self._kubectl.words("create", "--filename=jobset.json")]
        if job.bundle.files:
            objects["config.json"] = manifest.config_map(job)
            words.insert(0, self._kubectl.words("apply", "--filename=config.json"))
        files = {name: json.dumps(found, indent=2) + "\n" for name, found in objects.items()}
        return Rendering(files=files, commands=tuple(words))

    def is_running(self, job: Job) -> bool:
        found = self._find(job)
        if found is None or _ended(found):
            return False
        if found["metadata"]["annotations"].get(DIGEST) != job.digest(self):
            place = {"name": job.name, "context": self.context, "namespace": self.namespace}
            flags = [f"--{flag}={value}" for flag, value in place.items() if value]
            raise UserError(
                f"--name={job.name}: runs another command, or with other flags; end it first: "
                f"bert-jax launch gke stop {shlex.join(flags)}"
            )
        return True

    def run(self, job: Job) -> int:
        is_new = not self.is_running(job)
        if is_new:
            if self._find(job):  # has ended
                self._kubectl.change("delete", "jobset", job.name, "--cascade=foreground")
            self.render(job).run()
        else:
            say(f"{job.name}: runs already; `logs` has what it printed so far")
        say("JobSet restarts the job; this command watches it, and enforces --max_preemptions")
        return self._watch(job, is_new=is_new)

    def _watch(self, job: Job, *, is_new: bool) -> int:
        """Prints logs and every change until the job has ended; returns its exit code."""
        shown = ""
        with PodLogs(self._log_words(job), is_new=is_new) as logs:
            while (found := programs.answer(lambda: self._find(job), _POLL)) and not _ended(found):
                pods = programs.answer(lambda: self._pods(job), _POLL)
                if (line := self._progress(found, pods)) != shown:
                    say(f"{job.name}: {line}")
                    shown = line
                if _are_there(found, pods):
                    logs.follow(_restarts(found))
                most, failures = job.limits.max_preemptions, _restarts(found, "CountTowardsMax")
                if most != UNLIMITED and _restarts(found) - failures > most:
                    say(f"{job.name}: more than {most} preemptions (--max_preemptions)")
                    self.stop(job)
                    return STOPPED
                time.sleep(_POLL)
            if found is None:
                say(f"{job.name}: was deleted")
                return STOPPED
            logs.finish(_restarts(found))
        code = 0 if condition(found, "Completed") else self._code(job)
        say(f"{job.name}: ended with {code}")
        return code

    def _code(self, job: JobId) -> int:
        """Returns the exit code of a job that failed, from the pods that are still there."""
        states = [
            container.get("state", {}).get("terminated", {})
            for pod in self._pods(job)
            for container in pod["status"].get("containerStatuses", [])
        ]
        ended = sorted((s for s in states if s), key=lambda state: state["finishedAt"])
        return verdict(state["exitCode"] for state in ended) or LOST

    def _progress(self, found: dict[str, Any], pods: list[dict[str, Any]]) -> str:
        """Returns where a job stands that has not ended."""
        if found["spec"].get("suspend"):
            return f"waiting in the queue{queue_reason(self._kubectl, found)}"
        hosts = _hosts(found)
        there = sum(pod["status"]["phase"] in ("Running", "Succeeded") for pod in pods)
        again = f", restart {_restarts(found)}" if _restarts(found) else ""
        if there == hosts:
            return f"running on {hosts} hosts{again}"
        waiting = (reason for pod in pods if (reason := _waiting_for(pod)))
        why = f" ({next(waiting, 'no node yet')})"
        return f"waiting for capacity, {there} of {hosts} hosts there{again}{why}"

    def status(self, job: JobId) -> str:
        found = self._found(job)
        ended = _ended(found)
        what = f"{ended['type'].lower()}: {ended['message']}" if ended else ""
        return f"{job.name}: {what or self._progress(found, self._pods(job))}"

    def logs(self, job: JobId, *, follow: bool) -> None:
        found: dict[str, Any] | None = self._found(job)
        with PodLogs(self._log_words(job), is_new=True) as logs:
            while follow and found and not _ended(found):
                if _are_there(found, programs.answer(lambda: self._pods(job), _POLL)):
                    logs.follow(_restarts(found))
                time.sleep(_POLL)
                found = programs.answer(lambda: self._find(job), _POLL)
            code = logs.finish(_restarts(found)) if found else 0
        if code != 0:  # kubectl has said why
            raise UserError(f"{job.name}: kubectl logs ended with {code}")

    def stop(self, job: JobId) -> None:
        if self._find(job) is None:
            say(f"{job.name}: not there")
            return
        # Pods get SIGTERM, and their grace period to save.
        self._kubectl.change("delete", "jobset", job.name, "--cascade=foreground", "--wait")
        while programs.answer(lambda: self._pods(job), _POLL):
            time.sleep(_POLL)
        say(f"{job.name}: has ended; no pod is left")

    def delete(self, job: JobId) -> None:
        self.stop(job)
        selector = f"{NAME}={job.name}"
        self._kubectl.change("delete", "configmaps", f"--selector={selector}")
        if left := self._kubectl.list(_KINDS, selector):
            names = ", ".join(f"{one['kind']} {one['metadata']['name']}" for one in left)
            raise UserError(f"{job.name}: still there: {names}; delete again")
        say(f"{job.name}: nothing is left of {_KINDS.replace(',', ', ')}")

    def _find(self, job: JobId) -> dict[str, Any] | None:
        """Returns the job's JobSet; UserError if another program made it, or for another run."""
        found = self._kubectl.get("jobset", job.name)
        about = (found or {}).get("metadata", {}).get("annotations", {})
        if found and (WORKDIR not in about or job.workdir not in ("", about[WORKDIR])):
            whose = f"runs in {about[WORKDIR]}" if WORKDIR in about else "is not of bert-jax"
            raise UserError(f"--name={job.name}: a JobSet of this name {whose}; choose another")
        return found

    def _found(self, job: JobId) -> dict[str, Any]:
        found = self._find(job)
        if found is None:
            raise UserError(f"--name={job.name}: no such job; check --context and --namespace")
        return found

    def _pods(self, job: JobId) -> list[dict[str, Any]]:
        return self._kubectl.list("pods", f"{NAME}={job.name}")

    def _log_words(self, job: JobId) -> tuple[str, ...]:
        return self._kubectl.words(
            "logs", f"--selector={NAME}={job.name}", "--prefix", "--tail=-1",
            f"--max-log-requests={_MAX_HOSTS}",
        )  # fmt: skip


def _slice(job: Job) -> Slice:
    assert job.topology, "`needs_topology` is set"
    return job.topology


def _ended(found: dict[str, Any]) -> dict[str, Any] | None:
    return condition(found, "Completed", "Failed")


def _hosts(found: dict[str, Any]) -> int:
    group = found["spec"]["replicatedJobs"][0]
    return int(group["replicas"] * group["template"]["spec"]["parallelism"])


def _are_there(found: dict[str, Any], pods: list[dict[str, Any]]) -> bool:
    """Returns whether all pods have started: kubectl follows those that there are when it
    starts."""
    phases = [pod["status"]["phase"] for pod in pods]
    return "Running" in phases and "Pending" not in phases and len(pods) >= _hosts(found)


def _restarts(found: dict[str, Any], which: str = "") -> int:
    """Returns the restarts; which: "CountTowardsMax": those that JobSet counts as failures."""
    return int(found.get("status", {}).get(f"restarts{which}", 0))


def _waiting_for(pod: dict[str, Any]) -> str:
    conditions = pod["status"].get("conditions", [])
    return next((one.get("message", "") for one in conditions if one["status"] == "False"), "")
