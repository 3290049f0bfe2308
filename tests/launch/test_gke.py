"""Jobs on GKE through the real kubectl, against a server on loopback that checks strictly."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes_schema import wrong_in
from kubernetes_server import Cluster, Log
from launch_jobs import BUNDLE, IMAGE, job
from signals import with_signals

from bert_jax.errors import UserError
from bert_jax.launch.bundle import make
from bert_jax.launch.gke import backend as gke
from bert_jax.launch.gke.backend import Gke
from bert_jax.launch.job import Job, JobId
from bert_jax.launch.preflight import run_checks
from bert_jax.launch.restarts import Limits

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.xdist_group("engines"),  # beside tests with deadlines, as those with Slurm
    pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed"),
]
LIMIT = 60  # seconds for whatever is waited for
SLICES = "v6e-16"  # four hosts
BACKEND = Gke(image=IMAGE)
B1 = JobId(name="b1")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with Cluster(wrong_in) as cluster:
        cluster.write_kubeconfig(tmp_path / "kubeconfig")
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        monkeypatch.setenv("HOME", str(tmp_path))  # of kubectl's cache
        monkeypatch.setattr(gke, "_POLL", 0.1)
        yield cluster


class Controllers(threading.Thread):
    """Does in the background what controllers do with the JobSet b1, one step after another."""

    def __init__(self, cluster: Cluster, *steps: Any):
        super().__init__(daemon=True)
        self.cluster, self.steps = cluster, steps
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.until(lambda: ("jobsets", "b1") in self.cluster.objects)
            for step in self.steps:
                step(self)
        except BaseException as error:
            self.error = error

    def done(self) -> None:
        self.join(LIMIT)
        assert not self.is_alive()
        assert self.error is None

    def until(self, condition: Any) -> None:
        end = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.02)

    def status(self, **changes: Any) -> None:
        self.cluster.objects["jobsets", "b1"].setdefault("status", {}).update(changes)

    def condition(self, kind: str, message: str = "") -> None:
        self.status(conditions=[{"type": kind, "status": "True", "message": message}])


def pods(phase: str, count: int = 4, text: str = "", code: int | None = None) -> Any:
    """A step that makes the pods, or changes them."""

    def step(self: Controllers) -> None:
        for index in range(count):
            name = f"b1-slice-0-{index}"
            state: dict[str, Any] = {"running": {}}
            if code is not None:
                ended = {"exitCode": code, "finishedAt": f"2026-11-24T00:00:0{index}Z"}
                state = {"terminated": ended}
            container = {"name": "train", "state": state}
            waits = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes available"}
            status = {"phase": phase, "containerStatuses": [container]}
            status |= {"conditions": [waits]} if phase == "Pending" else {}
            self.cluster.put(
                "pods",
                {
                    "metadata": {"name": name, "labels": {"bert-jax/name": "b1"}},
                    "spec": {"containers": [{"name": "train"}]},
                    "status": status,
                },
            )
            log = self.cluster.logs.setdefault(name, Log())
            log.text += text.format(index)
            log.has_ended = code is not None

    return step


def pause(self: Controllers) -> None:
    """Until the launcher has looked at what is there now: it began to look twice more."""

    def looks() -> int:
        return sum(
            method == "GET" and path.endswith("/jobsets/b1")
            for method, path in self.cluster.requests
        )

    last = looks() + 2
    self.until(lambda: looks() >= last)


def completed(self: Controllers) -> None:
    self.condition("Completed", "all jobs completed")


def failed(self: Controllers) -> None:
    self.condition("Failed", "jobset failed")


def posts(cluster: Cluster, plural: str) -> int:
    return sum(method == "POST" and path.endswith(plural) for method, path in cluster.requests)


def test_a_job_is_shown_from_the_first_pod_to_its_end(cluster, capfd):
    lines = "line {0}.1\nline {0}.2\n"
    steps = (
        pause, pods("Pending"), pause, pods("Running", text=lines), pause,
        pods("Succeeded", text="end {}\n", code=0), completed,
    )  # fmt: skip
    controllers = Controllers(cluster, *steps)
    assert BACKEND.run(job(SLICES)) == 0
    controllers.done()
    printed = capfd.readouterr().out.splitlines()
    own = [line.removeprefix("launch | ") for line in printed if line.startswith("launch | ")]
    assert own == [
        "$ kubectl create --filename=jobset.json",
        "JobSet restarts the job; this command watches it, and enforces --max_preemptions",
        "b1: waiting for capacity, 0 of 4 hosts there (no node yet)",
        "b1: waiting for capacity, 0 of 4 hosts there (0/3 nodes available)",
        "b1: running on 4 hosts",
        "b1: ended with 0",
    ]
    of_pods = sorted(line for line in printed if line.startswith("[pod/"))
    assert of_pods == sorted(
        f"[pod/b1-slice-0-{index}/train] {text}"
        for index in range(4)
        for text in (f"line {index}.1", f"line {index}.2", f"end {index}")
    )
    assert wrong_in(cluster.objects["jobsets", "b1"] | {"status": {}}) == [
        'unknown field "status"'
    ], "the server has what was rendered"


@pytest.mark.parametrize(("code", "ended"), [(1, 1), (44, 44), (43, 43), (137, 43), (42, 42)])
def test_a_job_that_fails_ends_with_the_code_of_its_pods(cluster, capfd, code, ended):
    controllers = Controllers(cluster, pods("Failed", text="last words\n", code=code), failed)
    assert BACKEND.run(job(SLICES)) == ended
    controllers.done()
    printed = capfd.readouterr().out
    assert printed.count("last words") == 4, "also where it failed before the launcher looked"


def test_a_restart_is_shown_with_the_output_of_its_pods(cluster, capfd):
    def restart(self: Controllers) -> None:
        for name in self.cluster.names("pods"):
            del self.cluster.objects["pods", name]
            del self.cluster.logs[name]
        self.status(restarts=1, restartsCountTowardsMax=1)

    first, second = (pods("Running", text=f"attempt {n}\n") for n in (1, 2))
    end = pods("Failed", code=43)
    steps = (first, pause, end, pause, restart, second, pause, pods("Succeeded", code=0), completed)
    controllers = Controllers(cluster, *steps)
    assert BACKEND.run(job(SLICES)) == 0
    controllers.done()
    printed = capfd.readouterr().out
    assert "running on 4 hosts, restart 1" in printed
    assert (printed.count("attempt 1"), printed.count("attempt 2")) == (4, 4), printed


def test_no_output_is_lost_of_pods_that_come_later(cluster, capfd):
    """With a slice for each node pool the first pod of a slice may run before the others exist."""
    one = pods("Running", count=1, text="line {0}\n")
    steps = (one, pause, pods("Running", text="line {0}\n"), pause, pods("Succeeded", code=0))
    controllers = Controllers(cluster, *steps, completed)
    assert BACKEND.run(job(SLICES)) == 0
    controllers.done()
    printed = capfd.readouterr().out
    assert [printed.count(f"] line {index}") for index in range(4)] == [2, 1, 1, 1], printed


def test_more_preemptions_than_allowed_end_the_job(cluster, capfd):
    def preempted(self: Controllers) -> None:
        self.status(restarts=4, restartsCountTowardsMax=1)

    controllers = Controllers(cluster, pods("Running"), preempted)
    of = job(SLICES, limits=Limits(max_preemptions=2))
    ending = threading.Thread(target=remove_pods_with_the_job_set, args=(cluster,), daemon=True)
    ending.start()
    assert BACKEND.run(of) == 42
    controllers.done()
    assert "b1: more than 2 preemptions (--max_preemptions)" in capfd.readouterr().out
    assert cluster.names("jobsets") == []


def remove_pods_with_the_job_set(cluster: Cluster) -> None:
    """As the garbage collector does."""
    while ("jobsets", "b1") not in cluster.objects:
        time.sleep(0.02)
    while ("jobsets", "b1") in cluster.objects:
        time.sleep(0.02)
    time.sleep(0.3)
    for name in cluster.names("pods"):
        cluster.objects.pop(("pods", name), None)


def submitted(cluster: Cluster, of: Job | None = None) -> dict[str, Any]:
    """The JobSet of a job that another launcher has submitted."""
    manifest = json.loads(BACKEND.render(of or job(SLICES)).files["jobset.json"])
    return cluster.put("jobsets", manifest)


def test_a_launcher_finds_the_job_of_another(cluster, capfd):
    submitted(cluster)
    assert BACKEND.is_running(job(SLICES))
    Controllers(cluster, pods("Running"), pause, pods("Succeeded", code=0), completed)
    assert BACKEND.run(job(SLICES, bundle=dataclasses.replace(BUNDLE, digest="f" * 64))) == 0
    assert "b1: runs already" in capfd.readouterr().out
    assert posts(cluster, "jobsets") == 0


def test_a_job_that_has_ended_is_replaced(cluster, capfd):
    submitted(cluster)["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    assert not BACKEND.is_running(job(SLICES))
    cluster.on_delete = lambda plural, name: Controllers(
        cluster, pause, pods("Succeeded", code=0), completed
    )
    assert BACKEND.run(job(SLICES)) == 0
    assert "$ kubectl delete jobset b1 --cascade=foreground" in capfd.readouterr().out
    assert posts(cluster, "jobsets") == 1


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (job("v6e-64"), "end it first: bert-jax"),
        (
            job(SLICES, workdir="gs://bucket/other"),
            "a JobSet of this name runs in gs://bucket/b1; choose another",
        ),
    ],
)
def test_a_name_that_another_job_has_is_refused(cluster, of, says):
    submitted(cluster)
    with pytest.raises(UserError, match=re.escape(says)):
        BACKEND.is_running(of)
    assert posts(cluster, "jobsets") == 0


@pytest.mark.parametrize("verb", ["status", "stop", "delete"])
def test_a_job_set_of_another_program_is_left_alone(cluster, verb):
    cluster.put("jobsets", {"metadata": {"name": "b1"}, "spec": {}})
    with pytest.raises(UserError, match="a JobSet of this name is not of bert-jax"):
        getattr(BACKEND, verb)(B1)
    assert cluster.names("jobsets") == ["b1"]


def test_status_of_each_state(cluster):
    with pytest.raises(UserError, match="--name=b1: no such job; check --context and --namesp"):
        BACKEND.status(B1)
    found = submitted(cluster)
    assert BACKEND.status(B1) == "b1: waiting for capacity, 0 of 4 hosts there (no node yet)"
    Controllers(cluster, pods("Running")).done()
    assert BACKEND.status(B1) == "b1: running on 4 hosts"
    found["spec"]["suspend"] = True
    load = {
        "metadata": {
            "name": "load", "labels": {"kueue.x-k8s.io/job-uid": found["metadata"]["uid"]},
        },
        "status": {
            "conditions": [
                {"type": "QuotaReserved", "status": "False", "message": "insufficient quota"}
            ]
        },
    }  # fmt: skip
    cluster.put("workloads", load)
    assert BACKEND.status(B1) == "b1: waiting in the queue (insufficient quota)"
    found["status"] = {
        "conditions": [{"type": "Failed", "status": "True", "message": "jobset failed"}]
    }
    assert BACKEND.status(B1) == "b1: failed: jobset failed"


def test_logs_has_each_line_of_every_pod_once(cluster, capfd):
    """Of more pods than kubectl follows by default, while they write and connections are lost."""
    submitted(cluster)
    slices, count, lines = Controllers(cluster, pods("Running", 12)), 12, 200
    slices.done()

    def are_followed() -> bool:
        return all(log.followed > log.cuts for log in cluster.logs.values())

    def write(self: Controllers) -> None:
        try:
            for n in range(lines):
                for log in cluster.logs.values():
                    log.text += f"{n}\n"
                if n in (50, 101, 150):  # the second amid two lines of one time
                    self.until(are_followed)
                    for log in cluster.logs.values():
                        log.cuts += 1
                    self.until(are_followed)
                time.sleep(0.005)
        finally:  # or logs would wait for more
            for log in cluster.logs.values():
                log.has_ended = True
            self.condition("Completed")

    writing = Controllers(cluster, write)
    BACKEND.logs(B1, follow=True)
    writing.done()
    expected = sorted(
        f"[pod/b1-slice-0-{index}/train] {n}" for index in range(count) for n in range(lines)
    )
    assert sorted(capfd.readouterr().out.splitlines()) == expected
    BACKEND.logs(B1, follow=False)
    assert sorted(capfd.readouterr().out.splitlines()) == expected


def test_stop_waits_until_no_pod_is_left(cluster, capfd):
    submitted(cluster)
    Controllers(cluster, pods("Running")).done()
    ending = threading.Thread(target=remove_pods_with_the_job_set, args=(cluster,), daemon=True)
    ending.start()
    BACKEND.stop(B1)
    assert cluster.names("pods") == cluster.names("jobsets") == []
    assert cluster.deletions == [("jobsets", "b1", "Foreground")], "pods have their grace period"
    BACKEND.stop(B1)
    assert capfd.readouterr().out.splitlines()[-1] == "launch | b1: not there"


def test_delete_leaves_nothing_or_says_what(cluster, tmp_path, capfd):
    (tmp_path / "mine.py").write_text("x = 1\n")
    bundle = make("1.0", tmp_path / "mine.py", checkout=None)
    Controllers(cluster, pods("Succeeded", code=0), completed)
    assert BACKEND.run(job(SLICES, bundle=bundle)) == 0
    assert len(cluster.names("configmaps")) == 1
    cluster.put("configmaps", {"metadata": {"name": "of-others"}})
    cluster.on_delete = lambda plural, name: [
        cluster.objects.pop(("pods", pod)) for pod in cluster.names("pods")
    ]
    BACKEND.delete(B1)
    assert cluster.names("configmaps") == ["of-others"]
    assert "nothing is left of jobsets, jobs, pods, configmaps" in capfd.readouterr().out
    cluster.put("jobs", {"metadata": {"name": "b1-slice-0", "labels": {"bert-jax/name": "b1"}}})
    with pytest.raises(UserError, match="b1: still there: Job b1-slice-0; delete again"):
        BACKEND.delete(B1)


def checked(cluster: Cluster, backend: Gke, of: Job) -> tuple[list[str], str]:
    """What the checks say, and the error; empty if all passed."""
    said: list[str] = []
    try:
        run_checks(backend.checks(of), said.append)
    except UserError as error:
        return said, str(error)
    return said, ""


def make_nodes(cluster: Cluster, count: int) -> None:
    labels = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    for index in range(count):
        cluster.put("nodes", {"metadata": {"name": f"node-{index}", "labels": labels}})


def test_a_cluster_that_has_everything_passes(cluster):
    make_nodes(cluster, 4)
    cluster.put("secrets", {"metadata": {"name": "hf"}, "data": {"token": "eA=="}})
    queue = {"spec": {"clusterQueue": "tpus"}, "metadata": {"name": "q"}}
    cluster.put("localqueues", queue | {"status": {"conditions": [active("True")]}})
    of = job(SLICES, env_from=(("HF_TOKEN", "hf/token"),))
    cluster.put("serviceaccounts", {"metadata": {"name": "trainer"}})
    said, error = checked(cluster, Gke(image=IMAGE, queue="q", service_account="trainer"), of)
    assert error == ""
    names = ["kubectl", "manifest", "nodes", "secret HF_TOKEN", "service account", "queue"]
    assert [line.partition(":")[0] for line in said] == names
    assert cluster.names("jobsets") == [], "nothing was created"


def active(status: str) -> dict[str, str]:
    return {"type": "Active", "status": status, "message": "queue is stopped"}


def test_all_failures_are_said_at_once(cluster):
    queue = {"spec": {"clusterQueue": "tpus"}, "metadata": {"name": "q"}}
    cluster.put("localqueues", queue | {"status": {"conditions": [active("False")]}})
    cluster.check = lambda found: ['unknown field "spec.failurePolicy.onJobFailureMessagePatterns"']
    of = job(SLICES, env_from=(("HF_TOKEN", "hf/token"),))
    options = {"queue": "q", "service_account": "trainer", "namespace": "team"}
    said, error = checked(cluster, Gke(image=IMAGE, **options), of)
    assert error.startswith("5 checks failed before anything was created: manifest, nodes, ")
    assert [line for line in said if "FAILED" in line] == [
        "manifest: FAILED: the cluster's JobSet is older than 0.10, which knows a failure by its "
        "message; upgrade it, or give --coarse_restarts",
        "nodes: FAILED: 0 of 4 nodes with cloud.google.com/gke-tpu-accelerator=tpu-v6e-slice,"
        "cloud.google.com/gke-tpu-topology=4x4, and no autoscaler; make a node pool with `gcloud "
        "container node-pools create`",
        "secret HF_TOKEN: FAILED: hf/token: no such secret or key; make it: kubectl "
        "--namespace=team create secret generic hf --from-file=token=FILE",
        "service account: FAILED: trainer: no such Kubernetes service account, without which no "
        "pod is made; make it: kubectl --namespace=team create serviceaccount trainer",
        "queue: FAILED: q: is not active (queue is stopped); ask who runs the cluster",
    ]


def test_a_queue_that_does_not_exist_is_answered_with_those_that_do(cluster):
    make_nodes(cluster, 4)
    cluster.put("localqueues", {"metadata": {"name": "tpus"}, "spec": {}})
    assert checked(cluster, Gke(image=IMAGE, queue="tpu"), job(SLICES))[1] == (
        "queue: tpu: no such LocalQueue; give one of: tpus"
    )


def test_an_autoscaler_may_make_the_nodes(cluster):
    make_nodes(cluster, 1)
    cluster.put("configmaps", {"metadata": {"name": "cluster-autoscaler-status"}})
    said, error = checked(cluster, BACKEND, job(SLICES))
    assert error == ""
    assert "1 of 4 nodes with" in said[-1]
    assert said[-1].endswith("the autoscaler may make the others")


def test_a_manifest_that_the_cluster_refuses_is_one_line(cluster):
    make_nodes(cluster, 4)
    cluster.check = lambda found: ['unknown field "spec.a"', 'unknown field "spec.b"']
    error = checked(cluster, BACKEND, job(SLICES))[1]
    assert error.startswith("manifest: jobset.json is refused: Error from server (BadRequest)")
    assert "\n" not in error


def test_a_cluster_without_job_set_is_one_line(cluster):
    cluster.without.add("jobset.x-k8s.io")
    with pytest.raises(UserError, match="the cluster has no jobset: install it there, or choose"):
        BACKEND.is_running(job(SLICES))


def test_a_cluster_that_does_not_answer_is_one_line(tmp_path, monkeypatch):
    with Cluster(wrong_in) as gone:
        gone.write_kubeconfig(tmp_path / "kubeconfig")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match="kubectl get: The connection to the server") as error:
        BACKEND.status(B1)
    assert "\n" not in str(error.value)


def test_ctrl_c_ends_the_launcher_and_not_the_job(cluster, tmp_path):
    submitted(cluster)
    Controllers(cluster, pods("Running", text="at work\n")).done()
    script = (
        "from launch_jobs import *; from bert_jax.launch.gke.backend import Gke; "
        f"Gke(image=IMAGE).run(job({SLICES!r}))"
    )
    with subprocess.Popen(
        with_signals([sys.executable, "-c", script]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert any("running on 4 hosts" in line for line in process.stdout)
            process.send_signal(signal.SIGINT)
            process.wait(LIMIT)
        finally:
            process.kill()
    assert cluster.names("jobsets") == ["b1"]
    assert cluster.deletions == []
