"""The manifests of jobs on GKE against the schemas of JobSet and Kubernetes, and what a JobSet does
after each end of a pod."""

import json
import re
from typing import Any

import pytest
from kubernetes_schema import misspelt, wrong_in
from launch_jobs import IMAGE, job
from test_rendering import CASES, awkward_job

from bert_jax.hardware import slices
from bert_jax.launch.bundle import make
from bert_jax.launch.gke.backend import Gke
from bert_jax.launch.restarts import Limits

Object = dict[str, Any]
MANIFESTS = [name for name in CASES if name.startswith("gke")]


def manifest(backend: Gke, of: Any) -> Object:
    return json.loads(backend.render(of).files["jobset.json"])


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_cluster_would_take_a_manifest(name: str) -> None:
    assert wrong_in(manifest(*CASES[name])) == []


def test_the_cluster_would_take_any_word_and_config_file(tmp_path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    bundle = make("1.0", tmp_path / "mine.py", checkout=None)
    rendering = Gke(image=IMAGE).render(awkward_job(topology="v6e-16", bundle=bundle))
    for text in rendering.files.values():
        assert wrong_in(json.loads(text)) == []


def test_the_schema_sees_every_misspelt_key() -> None:
    """So that a key that the cluster would not know cannot be rendered."""
    name = "gke_v4-16_options"
    for whole in (manifest(*CASES[name]), manifest(*CASES["gke_2xv6e-64_queue"])):
        tried = list(misspelt(whole["spec"], "spec"))
        assert len(tried) > 50
        unseen = [where for where, changed in tried if not wrong_in({**whole, "spec": changed})]
        assert unseen == []


@pytest.mark.parametrize(
    ("key", "value"), [("completionMode", 1), ("parallelism", "4"), ("backoffLimit", "0")]
)
def test_the_schema_sees_a_value_of_a_wrong_type(key: str, value: object) -> None:
    whole = manifest(*CASES["gke_v6e-16"])
    whole["spec"]["replicatedJobs"][0]["template"]["spec"][key] = value
    assert wrong_in(whole)


@pytest.mark.parametrize("name", ["v5e-1", "v5e-8", "v5e-16", "2xv6e-64", "v4-16", "tpu7x-16"])
def test_a_slice_has_a_pod_for_each_host_with_all_of_its_chips(name: str) -> None:
    tpu, whole = slices.find(name), manifest(Gke(image=IMAGE), job(name))
    (group,) = whole["spec"]["replicatedJobs"]
    spec = group["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    pods = group["replicas"] * spec["parallelism"]
    assert spec["completions"] == spec["parallelism"]
    assert (group["replicas"], pods) == (tpu.count, tpu.hosts)
    assert pods * container["resources"]["limits"]["google.com/tpu"] == tpu.chips


def action_after(whole: Object, code: int | None, *, evicted: bool = False) -> str:
    """What Kubernetes' Job and JobSet's controllers do after the end of a pod, by their rules.

    https://kubernetes.io/docs/concepts/workloads/controllers/job#pod-failure-policy
    https://jobset.sigs.k8s.io/docs/concepts#failure-policy
    """
    spec = whole["spec"]["replicatedJobs"][0]["template"]["spec"]
    reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    for index, rule in enumerate(spec["podFailurePolicy"]["rules"]):
        codes = rule.get("onExitCodes")
        if codes and code is not None and (code in codes["values"]) == (codes["operator"] == "In"):
            what = f"Container train for pod team/b1 failed with exit code {code}"
        elif evicted and rule.get("onPodConditions"):
            what = "Pod team/b1 has condition DisruptionTarget"
        else:
            continue
        reason, message = "PodFailurePolicy", f"{what} matching FailJob rule at index {index}"
        break
    for rule in whole["spec"]["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if reason in rule["onJobFailureReasons"] and any(re.search(p, message) for p in patterns):
            return rule["action"]
    return "RestartJobSet"  # counts against maxRestarts


FREE, COUNTED, END = "RestartJobSetAndIgnoreMaxRestarts", "RestartJobSet", "FailJobSet"


@pytest.mark.parametrize(
    ("code", "evicted", "action", "coarse_action"),
    [
        (1, False, END, END),
        (2, False, END, END),
        (44, False, END, END),
        (45, False, END, END),
        (42, False, FREE, COUNTED),
        (42, True, FREE, COUNTED),
        (43, False, COUNTED, COUNTED),
        (43, True, FREE, COUNTED),
        (137, False, COUNTED, COUNTED),
        (137, True, FREE, COUNTED),
        (143, True, FREE, COUNTED),
        (134, False, COUNTED, COUNTED),
        (None, True, FREE, COUNTED),  # its node is gone
        (127, False, COUNTED, END),
    ],
)
def test_what_happens_after_the_end_of_a_pod(code, evicted, action, coarse_action) -> None:
    exact, coarse = (
        manifest(Gke(image=IMAGE, coarse_restarts=coarse), job("v6e-16")) for coarse in (0, 1)
    )
    assert action_after(exact, code, evicted=evicted) == action
    assert action_after(coarse, code, evicted=evicted) == coarse_action


@pytest.mark.parametrize(
    ("preemptions", "failures", "exact", "coarse"),
    [(100, 3, 3, 103), (5, 0, 0, 5), (-1, 3, 3, 2**31 - 1), (100, -1, 2**31 - 1, 2**31 - 1)],
)
def test_the_budgets_of_a_job_set(preemptions, failures, exact, coarse) -> None:
    of = job("v6e-16", limits=Limits(max_preemptions=preemptions, max_failures=failures))
    for is_coarse, most in ((False, exact), (True, coarse)):
        policy = manifest(Gke(image=IMAGE, coarse_restarts=is_coarse), of)["spec"]["failurePolicy"]
        assert policy["maxRestarts"] == most


def test_pods_have_the_time_to_save() -> None:
    of = job("v6e-16", limits=Limits(grace=100.5, margin=15.0))
    (group,) = manifest(Gke(image=IMAGE), of)["spec"]["replicatedJobs"]
    assert group["template"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 116


def test_a_secret_is_named_by_its_reference() -> None:
    of = job("v6e-16", env_from=(("HF_TOKEN", "hf/token"),))
    (group,) = manifest(Gke(image=IMAGE), of)["spec"]["replicatedJobs"]
    (container,) = group["template"]["spec"]["template"]["spec"]["containers"]
    (variable,) = (one for one in container["env"] if one["name"] == "HF_TOKEN")
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "hf", "key": "token"}}
    assert "value" not in variable
