"""Checks of a GKE cluster before a job is created."""

import functools
import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.launch.gke.kubectl import Kubectl, condition
from bert_jax.launch.job import Job, Rendering
from bert_jax.launch.preflight import Check, CheckFailedError, check_version, no_version
from bert_jax.launch.programs import ProgramError

_KUBECTL = (1, 27)  # the first that asks the server to refuse unknown keys


def gke_checks(
    kubectl: Kubectl,
    job: Job,
    rendering: Rendering,
    labels: Mapping[str, str],
    queue: str,
    service_account: str,
) -> list[Check]:
    """Returns the checks. labels: of the nodes that the job needs. queue, service_account: ""
    without one."""

    def check(name: str, probe: Callable[..., str], *values: Any) -> Check:
        return Check(name, functools.partial(probe, kubectl, *values))

    found = [
        check("kubectl", check_kubectl),
        check("manifest", _manifest, rendering),
        check("nodes", _if_visible, _nodes, labels, job.topology.hosts if job.topology else 1),
    ]
    found += [check(f"secret {name}", _if_visible, _secret, ref) for name, ref in job.env_from]
    if service_account:
        found.append(check("service account", _if_visible, _service_account, service_account))
    return [*found, check("queue", _if_visible, _queue, queue)] if queue else found


def check_kubectl(kubectl: Kubectl) -> str:
    """Returns the versions of kubectl and of its cluster; CheckFailedError if it is too old."""
    printed = kubectl.read("version", "--output=json")  # asks the server, too
    try:
        found = json.loads(printed)
        version, cluster = (found[f"{one}Version"]["gitVersion"] for one in ("client", "server"))
    except (ValueError, LookupError, TypeError):
        raise no_version(printed) from None
    check_version(f"kubectl {version}", _KUBECTL, "install")
    return f"kubectl {version}, cluster {cluster}"


def _manifest(kubectl: Kubectl, rendering: Rendering) -> str:
    """Lets the cluster check the objects: keys, rights, quotas and admission, and the name."""
    for name, text in rendering.files.items():
        assert isinstance(text, str)
        try:
            kubectl.read(
                "create", "--dry-run=server", "--validate=strict", "--filename=-", data=text
            )
        except ProgramError as error:
            if "(AlreadyExists)" in error.errors:  # the job has ended and will be replaced
                continue
            if "onJobFailureMessagePatterns" in error.errors:
                raise CheckFailedError(
                    "the cluster's JobSet is older than 0.10, which knows a failure by its message",
                    "upgrade it, or give --coarse_restarts",
                ) from None
            raise CheckFailedError(f"{name} is refused: {error.reason}", "see --dry_run") from None
    return "accepted by the cluster"


def _if_visible(kubectl: Kubectl, probe: Callable[..., str], *values: Any) -> str:
    """Returns what a probe does; that it is not known, if the user may not look there."""
    try:
        return probe(kubectl, *values)
    except ProgramError as error:
        if "(Forbidden)" not in error.errors:
            raise
        return f"not known ({error.reason})"


def _nodes(kubectl: Kubectl, labels: Mapping[str, str], hosts: int) -> str:
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    there = len(kubectl.read("get", "nodes", f"--selector={selector}", "--output=name").split())
    if there >= hosts:
        return f"{there} nodes with {selector}"
    status = "cluster-autoscaler-status"
    words = ("get", "configmap", status, "--namespace=kube-system", "--ignore-not-found")
    if kubectl.read(*words, "--output=name").strip():
        return f"{there} of {hosts} nodes with {selector}; the autoscaler may make the others"
    raise CheckFailedError(
        f"{there} of {hosts} nodes with {selector}, and no autoscaler",
        "make a node pool with `gcloud container node-pools create`",
    )


def _secret(kubectl: Kubectl, reference: str) -> str:
    name, _, key = reference.partition("/")
    found = kubectl.get("secret", name)
    if found is None or key not in found.get("data", {}):
        words = ("create", "secret", "generic", name, f"--from-file={key}=FILE")
        command = shlex.join(kubectl.words(*words))
        raise CheckFailedError(f"{reference}: no such secret or key", f"make it: {command}")
    return f"{reference} is there"


def _service_account(kubectl: Kubectl, name: str) -> str:
    if kubectl.get("serviceaccount", name) is None:
        command = shlex.join(kubectl.words("create", "serviceaccount", name))
        line = f"{name}: no such Kubernetes service account, without which no pod is made"
        raise CheckFailedError(line, f"make it: {command}")
    return f"{name} is there"


def _queue(kubectl: Kubectl, name: str) -> str:
    found = kubectl.get("localqueues.kueue.x-k8s.io", name)
    if found is None:
        known = kubectl.read("get", "localqueues.kueue.x-k8s.io", "--output=name").split()
        names = ", ".join(one.rpartition("/")[2] for one in known) or "none"
        raise CheckFailedError(f"{name}: no such LocalQueue", f"give one of: {names}")
    if not condition(found, "Active"):
        reasons = [one.get("message", "") for one in found.get("status", {}).get("conditions", [])]
        raise CheckFailedError(
            f"{name}: is not active ({'; '.join(reasons)})", "ask who runs the cluster"
        )
    return f"{name} of {found['spec']['clusterQueue']} is active"


def queue_reason(kubectl: Kubectl, found: dict[str, Any]) -> str:
    """Returns why Kueue has not admitted a JobSet yet, in brackets; empty if it does not say."""
    uid = found["metadata"]["uid"]
    try:
        loads = kubectl.list("workloads.kueue.x-k8s.io", f"kueue.x-k8s.io/job-uid={uid}")
    except UserError:  # Kueue is not there: somebody suspended the JobSet
        return ""
    reasons = [
        one.get("message", "")
        for load in loads
        for one in load.get("status", {}).get("conditions", [])
        if one["status"] == "False"
    ]
    return f" ({reasons[0]})" if reasons else ""
