"""The Kubernetes objects of a job on GKE, as data.

A JobSet with a replicated Job for the slices and one pod for each host, and a ConfigMap with the
user's config file. Keys: JobSet v1alpha2 (https://jobset.sigs.k8s.io/docs/reference), Kubernetes'
Job and Pod, and the labels of GKE's TPU nodes.
"""

import io
import math
import tarfile
from typing import Any

from bert_jax.exit_codes import FINAL, LOST, STOPPED
from bert_jax.hardware.slices import Slice
from bert_jax.launch.job import Job
from bert_jax.launch.restarts import UNLIMITED

ACCELERATORS = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "tpu7x": "tpu7x",
}
NAME, WORKDIR, DIGEST = "bert-jax/name", "bert-jax/workdir", "bert-jax/digest"
_ROOT = "/etc/bert-jax"  # where pods have the ConfigMap
_CONTAINER = "train"
_SPOT = "cloud.google.com/gke-spot"
_DAY = 86_400  # seconds
_MOST = 2**31 - 1
_KILLED = range(129, 193)  # 128 + N: by signal N


def node_labels(tpu: Slice, *, spot: bool, reservation: str) -> dict[str, str]:
    """Returns the labels of the nodes that have a slice."""
    shape = "x".join(map(str, tpu.shape))
    labels = {
        "cloud.google.com/gke-tpu-accelerator": ACCELERATORS[tpu.generation.name],
        "cloud.google.com/gke-tpu-topology": shape,
    }
    if spot:
        labels[_SPOT] = "true"
    if reservation:
        labels["cloud.google.com/reservation-name"] = reservation
    return labels


def job_set(
    job: Job, tpu: Slice, *, digest: str, image: str, queue: str, service_account: str,
    coarse: bool, spot: bool, reservation: str,
) -> dict[str, Any]:  # fmt: skip
    """Returns the JobSet."""
    hosts = tpu.hosts // tpu.count
    # Each slice has a node pool of its own, unless all its chips are on one node.
    pool = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    pod = _pod(job, tpu, image, node_labels(tpu, spot=spot, reservation=reservation))
    if service_account:
        pod["serviceAccountName"] = service_account
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": job.name,
            "labels": {NAME: job.name, **({"kueue.x-k8s.io/queue-name": queue} if queue else {})},
            "annotations": {
                WORKDIR: job.workdir,
                DIGEST: digest,
                **(pool if hosts > 1 else {}),
            },
        },
        "spec": {
            "ttlSecondsAfterFinished": 7 * _DAY,
            "failurePolicy": _failure_policy(job, coarse=coarse),
            "replicatedJobs": [
                {
                    "name": "slice",
                    "replicas": tpu.count,
                    "template": {
                        "spec": {
                            "completionMode": "Indexed",
                            "parallelism": hosts,
                            "completions": hosts,
                            "backoffLimit": 0,
                            "podFailurePolicy": {"rules": _pod_rules(coarse=coarse)},
                            "template": {"metadata": {"labels": {NAME: job.name}}, "spec": pod},
                        }
                    },
                }
            ],
        },
    }


def _pod_rules(*, coarse: bool) -> list[dict[str, Any]]:
    """Returns when a pod's end fails its Job with the reason PodFailurePolicy."""
    if coarse:
        restarted = [STOPPED, LOST, *_KILLED]
        return [_exit_rule("NotIn", restarted)]
    evicted = [{"type": "DisruptionTarget", "status": "True"}]
    return [
        _exit_rule("In", sorted((*FINAL, STOPPED))),
        {"action": "FailJob", "onPodConditions": evicted},
    ]


def _exit_rule(operator: str, codes: list[int]) -> dict[str, Any]:
    codes_of = {"containerName": _CONTAINER, "operator": operator, "values": codes}
    return {"action": "FailJob", "onExitCodes": codes_of}


def _failure_policy(job: Job, *, coarse: bool) -> dict[str, Any]:
    """Returns what the JobSet does when a Job fails.

    A final exit code ends it; a preemption (42, or an evicted pod) restarts it for free; all other
    failures, whose reason is BackoffLimitExceeded, count.

    coarse: for JobSet before 0.10, which sees only the reason. A final exit code ends it, all else
        counts, against both budgets together.
    """
    reasons = ["PodFailurePolicy"]
    end = {"name": "final", "action": "FailJobSet", "onJobFailureReasons": reasons}
    preemptions, failures = job.limits.max_preemptions, job.limits.max_failures
    if coarse:
        both = _MOST if UNLIMITED in (preemptions, failures) else preemptions + failures
        return {"maxRestarts": both, "rules": [end]}
    # Kubernetes' message: "Container train for pod … failed with exit code 1 matching FailJob …".
    codes = "|".join(map(str, FINAL))
    free = "RestartJobSetAndIgnoreMaxRestarts"
    return {
        "maxRestarts": _MOST if failures == UNLIMITED else failures,
        "rules": [
            end | {"onJobFailureMessagePatterns": [f"exit code ({codes}) "]},
            {"name": "preempted", "action": free, "onJobFailureReasons": reasons},
        ],
    }


def _pod(job: Job, tpu: Slice, image: str, labels: dict[str, str]) -> dict[str, Any]:
    root = f"{_ROOT}/{job.bundle.name}"
    variables = {
        **dict(job.env),
        "PYTHONUNBUFFERED": "1",
        **({"PYTHONPATH": ":".join(job.bundle.python_path(root))} if job.bundle.files else {}),
    }
    env: list[dict[str, Any]] = [
        {"name": name, "value": _literal(value)} for name, value in variables.items()
    ]
    for name, reference in job.env_from:
        secret, _, key = reference.partition("/")
        env.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    # With its slices, so that each process checks that JAX sees them.
    command = ["python", "-m", "bert_jax", *job.words(root), f"--topology={tpu.name}"]
    container: dict[str, Any] = {
        "name": _CONTAINER,
        "image": image,
        "command": [_literal(word) for word in command],
        "env": env,
        "resources": {"limits": {"google.com/tpu": math.prod(tpu.host_bounds)}},
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(job.limits.grace + job.limits.margin),
        "nodeSelector": labels,
        # Of taints: every TPU node has the first, and a spot node may have one like its label.
        "tolerations": [
            {"key": key, "operator": "Exists"}
            for key in ("google.com/tpu", _SPOT)
            if key != _SPOT or key in labels
        ],
        "containers": [container],
    }
    if job.bundle.files:
        container["volumeMounts"] = [{"name": "config", "mountPath": root, "readOnly": True}]
        paths = [{"key": _key(i), "path": path} for i, path in enumerate(_config_files(job))]
        config = {"name": config_name(job), "items": paths}
        pod["volumes"] = [{"name": "config", "configMap": config}]
    if tpu.count > 1:  # slices talk over the nodes' own network
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return pod


def _literal(text: str) -> str:
    """Returns a text that Kubernetes, which expands $(NAME), leaves as it was."""
    return text.replace("$", "$$")


def config_name(job: Job) -> str:
    return f"{job.name}-{job.bundle.digest[:12]}"


def config_map(job: Job) -> dict[str, Any]:
    """Returns the ConfigMap with the user's config file and its modules."""
    files = _config_files(job)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": config_name(job), "labels": {NAME: job.name}},
        "immutable": True,
        "data": {_key(i): text for i, text in enumerate(files.values())},
    }


def _key(index: int) -> str:
    return f"file-{index}"  # a path may have characters that a key must not


def _config_files(job: Job) -> dict[str, str]:
    """Returns the text of the files in the bundle, by path."""
    with tarfile.open(fileobj=io.BytesIO(job.bundle.archive)) as archive:
        return {
            member.name: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }
