"""Jobs on rented machines: the task against SkyPilot's schema, `sky` as a small script, and what a
node does in each attempt."""

# Over 300 lines: one script in place of `sky`, for the launcher's half and the nodes'.
import dataclasses
import itertools
import json
import math
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sky_schema
import yaml
from kubernetes_schema import misspelt
from launch_jobs import rented
from test_rendering import CASES

from bert_jax.errors import UserError
from bert_jax.launch.job import Job, JobId
from bert_jax.launch.preflight import run_checks
from bert_jax.launch.sky import backend as sky
from bert_jax.launch.sky import node
from bert_jax.launch.sky.backend import Sky
from bert_jax.launch.sky.node import State
from bert_jax.launch.sky.queue import name_of
from bert_jax.storage import remote, retry

BACKEND = Sky(accelerators="H100:8", num_nodes=2)
TASK = "sky-managed-2026-11-27-10-00-00-000000_b1_7-0"
# In place of SkyPilot: notes its words, and answers for the jobs in queue.json, which another
# machine submitted; they have a controller if the file is there.
PROGRAM = """#!{python}
import json, pathlib, sys
here, words = pathlib.Path("{folder}"), sys.argv[1:]
with open(here / "calls", "a") as calls:
    print(*words, file=calls)
queue = here / "queue.json"
jobs = json.loads(queue.read_text()) if queue.exists() else []
if words == ["--version"]:
    print("skypilot, version 0.14.1")
elif words[:2] == ["jobs", "queue"]:
    if not queue.exists() and "--refresh" in words:
        sys.exit("ClusterDoesNotExist: Cluster 'sky-jobs-controller-1' does not exist.")
    if not queue.exists() or (here / "stopped").exists() and "--refresh" not in words:
        sys.exit("sky.exceptions.ClusterNotUpError: No in-progress managed jobs.")
    print(json.dumps(jobs if "--all-users" in words else []))
elif words[:2] == ["jobs", "launch"]:
    task = pathlib.Path(words[-1]).read_text()
    name = task.split()[1]
    jobs.append({{"job_id": len(jobs) + 1, "job_name": name, "status": "RUNNING"}})
    queue.write_text(json.dumps(jobs))
elif words[:2] == ["jobs", "logs"]:
    print("output of the nodes", flush=True)
    jobs[-1]["status"] = (here / "end").read_text() if "--follow" in words else "RUNNING"
    queue.write_text(json.dumps(jobs))
elif words[:2] == ["jobs", "cancel"]:
    jobs[-1]["status"] = "CANCELLED"
    queue.write_text(json.dumps(jobs))
"""


def task_of(name: str) -> dict[str, Any]:
    backend, of = CASES[name]
    found: dict[str, Any] = yaml.safe_load(backend.render(of).files["b1.yaml"])
    return found


@pytest.mark.slow
@pytest.mark.skipif(
    not sky_schema.SCHEMAS.is_file(), reason="BERT_JAX_SKY names no folder with SkyPilot"
)
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("sky")])
def test_skypilot_takes_the_task_and_no_misspelt_one(name: str) -> None:
    task = task_of(name)
    assert sky_schema.wrong_in(task) == []
    mounts = ".file_mounts."  # names of files
    wrong = {path: changed for path, changed in misspelt(task) if not path.startswith(mounts)}
    assert len(wrong) >= 11
    assert [path for path, changed in wrong.items() if not sky_schema.wrong_in(changed)] == []


@pytest.mark.processes
def test_a_job_whose_controller_has_stopped_is_found_and_other_answers_are_one_line(
    tmp_path: Path, program: Path
) -> None:
    of = here(tmp_path)
    assert "no such job" in refusal(lambda: BACKEND.status(of))
    BACKEND.render(of).run()
    (program / "stopped").touch()
    assert BACKEND.is_running(of)
    (program / "stopped").unlink()
    (program / "queue.json").write_text("[]")
    (program / "sky").write_text("#!/bin/sh\necho new version of sky; echo '[]'\n")
    assert "no list of jobs, but 'new version of sky" in refusal(lambda: BACKEND.status(of))
    (program / "sky").write_text("#!/bin/sh\necho '{\"jobs\": 1}'\n")
    assert "no list of jobs, but " in refusal(lambda: BACKEND.status(of))


def refusal(ask: Callable[[], object]) -> str:
    with pytest.raises(UserError) as raised:
        ask()
    return str(raised.value)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of `sky`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sky").write_text(PROGRAM.format(python=sys.executable, folder=folder))
    (folder / "sky").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(sky, "_POLL", 0.01)
    return folder


def here(tmp_path: Path, **changes: Any) -> Job:
    return rented(workdir=str(tmp_path / "run"), **changes)


def calls(program: Path) -> list[str]:
    return (program / "calls").read_text().splitlines()


@pytest.mark.processes
def test_run_submits_a_job_and_ends_with_the_code_that_its_nodes_noted(
    tmp_path: Path, program: Path, capfd: pytest.CaptureFixture
) -> None:
    of = here(tmp_path)
    (program / "end").write_text("FAILED")
    node.put(f"{of.folder}/state.json", json.dumps(vars(State(TASK, 60, attempt=4))).encode())
    for rank, code in ((0, 43), (1, 44)):
        (Path(of.folder) / "codes/4").mkdir(parents=True, exist_ok=True)
        (Path(of.folder) / f"codes/4/{rank}").write_text(str(code))
    run_checks(BACKEND.checks(of), print)
    assert not BACKEND.is_running(of)
    assert BACKEND.run(of) == 44
    assert "jobs launch --yes --detach-run b1.yaml" in calls(program)
    printed = capfd.readouterr().out
    assert "jobs logs --tail=0 --follow 1" in calls(program)
    assert "output of the nodes" in printed
    assert printed.endswith("launch | SkyPilot job 1: failed, ended with 44\n")
    assert BACKEND.status(of).splitlines()[1] == "attempt 4; 0 preemptions, 0 failures so far"


@pytest.mark.processes
def test_a_running_job_is_found_by_its_name_and_another_of_it_refused(
    tmp_path: Path, program: Path, capfd: pytest.CaptureFixture
) -> None:
    of = here(tmp_path)
    name = name_of(of, of.digest(BACKEND))
    running = {"job_id": 1, "job_name": name, "status": "RECOVERING"}
    others = [{"job_id": 9, "job_name": other, "status": "RUNNING"} for other in ("b1-x", None)]
    (program / "queue.json").write_text(json.dumps([running, *others]))
    assert BACKEND.is_running(of)
    with pytest.raises(UserError, match="runs another command, or with other flags; end it first"):
        Sky(accelerators="A100:8").is_running(of)
    other = JobId(name="b2", workdir=of.workdir)
    assert "--name=b2: no such job in" in refusal(lambda: BACKEND.status(other))
    BACKEND.delete(other)
    assert capfd.readouterr().out == "launch | b2: not there\n"


@pytest.mark.processes
def test_a_job_in_another_workdir_is_not_this_one(tmp_path: Path, program: Path) -> None:
    of, elsewhere = here(tmp_path), JobId(name="b1", workdir=str(tmp_path / "wrong"))
    BACKEND.render(of).run()
    ended = name_of(elsewhere, of.digest(BACKEND))
    verbs = [
        BACKEND.status,
        lambda job: BACKEND.logs(job, follow=False),
        BACKEND.stop,
        BACKEND.delete,
    ]
    for verb in verbs:
        line = refusal(lambda verb=verb: verb(elsewhere))
        assert "SkyPilot job 1 has this name and is not in" in line
    assert not Path(elsewhere.folder).exists()
    assert not BACKEND.is_running(here(tmp_path / "wrong"))  # which may begin beside it
    jobs = json.loads((program / "queue.json").read_text())
    jobs.append({"job_id": 2, "job_name": ended, "status": "SUCCEEDED"})
    (program / "queue.json").write_text(json.dumps(jobs))
    assert BACKEND.status(elsewhere) == "SkyPilot job 2: succeeded"
    assert BACKEND.is_running(of)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("noted", "stops", "ends"),
    [([], False, False), ([43], False, False), ([42], True, True), ([0, 44], False, True)],
)
def test_a_job_that_another_skypilot_runs_is_not_submitted_again(
    tmp_path: Path, program: Path, noted: list[int], stops: bool, ends: bool
) -> None:
    of = here(tmp_path)
    node.put(f"{of.folder}/state.json", json.dumps(vars(State(TASK, 60))).encode())
    for rank, code in enumerate(noted):
        node.put(f"{of.folder}/codes/1/{rank}", str(code).encode())
    if stops:
        node.put(f"{of.folder}/stop", b"")
    if ends:
        assert not BACKEND.is_running(of)
    else:
        assert "use the machine that submitted it" in refusal(lambda: BACKEND.is_running(of))
        assert "has one that has not ended" in refusal(lambda: BACKEND.stop(of))


@pytest.mark.processes
@pytest.mark.parametrize(("state", "asks"), [("RUNNING", True), ("PENDING", False)])
def test_stop_asks_a_running_job_to_save_before_it_is_cancelled(
    tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch, state: str, asks: bool
) -> None:
    of = here(tmp_path)
    name = name_of(of, of.digest(BACKEND))
    (program / "queue.json").write_text(
        json.dumps([{"job_id": 1, "job_name": name, "status": state}])
    )
    Path(of.folder).mkdir(parents=True)
    node.put(f"{of.folder}/state.json", json.dumps(vars(State(TASK, 600))).encode())
    now = [0.0]  # it does not end by itself
    waits = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: now.append(now.pop() + 100))
    monkeypatch.setattr(sky, "time", waits)
    BACKEND.stop(of)
    assert now == ([900.0] if asks else [100.0])  # the grace and more before it is cancelled
    assert (Path(of.folder) / "stop").exists() == asks
    assert calls(program)[-2] == "jobs cancel --yes 1"
    BACKEND.delete(of)
    assert not Path(of.folder).exists()


@pytest.mark.processes
def test_a_secret_is_a_variable_of_the_shell_that_only_skypilot_reads(
    tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = here(tmp_path, env_from=(("HF_TOKEN", "HF_TOKEN"),))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(UserError, match="secret HF_TOKEN: HF_TOKEN is not set"):
        run_checks(BACKEND.checks(of), print)
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    run_checks(BACKEND.checks(of), print)
    assert "hunter2" not in BACKEND.render(of).text()


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs a node whose process ends with a code; returns the node's own."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2")
    monkeypatch.setenv("SKYPILOT_NUM_NODES", "2")

    def run(code: int, rank: int = 0, task: str = TASK, program: str = "", lost: str = "43") -> int:
        monkeypatch.setenv("SKYPILOT_TASK_ID", task)
        monkeypatch.setenv("SKYPILOT_NODE_RANK", str(rank))
        program = (
            program or f"import sys; open('place', 'w').write(str(sys.argv)); sys.exit({code})"
        )
        try:
            words = [str(tmp_path), "2", "1", "60", lost, sys.executable, "-c", program]
            return node.main(words)
        finally:
            signal.signal(signal.SIGTERM, before)

    monkeypatch.chdir(tmp_path)
    return run


@pytest.mark.processes
def test_a_node_finds_its_place_by_skypilots_variables(
    attempt: Callable[..., int], tmp_path: Path
) -> None:
    assert attempt(0, rank=1) == 0
    place = "['-c', '--coordinator=10.0.0.1:8476', '--num_processes=2', '--process_id=1']"
    assert (tmp_path / "place").read_text() == place
    alone = {"SKYPILOT_NODE_IPS": "10.0.0.1\n", "SKYPILOT_NUM_NODES": "1"}
    assert node.place(alone) == []


@pytest.mark.processes
def test_a_job_is_recovered_within_two_budgets(
    attempt: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    """SkyPilot recovers after 42 and 43 for ever; after 1 it does not."""
    assert [attempt(code) for code in (42, 43)] == [42, 43]
    assert attempt(43) == 1
    assert "1 of 1 failures used (--max_failures)" in capfd.readouterr().out
    assert State.read(str(tmp_path)) == State(TASK, 60, attempt=3, preemptions=1, failures=1)
    # Another node of that attempt ended with 43, so that SkyPilot recovers the job once more.
    (tmp_path / "place").unlink()
    assert attempt(0) == 1
    assert not (tmp_path / "place").exists()
    assert attempt(0, task="another submission") == 0
    assert State.read(str(tmp_path)) == State("another submission", 60)


@pytest.mark.processes
def test_nodes_that_were_taken_away_are_a_preemption(
    attempt: Callable[..., int], tmp_path: Path
) -> None:
    node.put(f"{tmp_path}/state.json", json.dumps(vars(State(TASK, 60))).encode())
    assert attempt(0) == 0
    assert State.read(str(tmp_path)) == State(TASK, 60, attempt=2, preemptions=1)


@pytest.mark.processes
def test_a_peer_that_several_spot_nodes_lose_is_a_preemption_and_a_killed_process_none(
    attempt: Callable[..., int], tmp_path: Path
) -> None:
    for nodes, spot, lost in ((2, True, "42"), (1, True, "43"), (2, False, "43")):
        backend = Sky(accelerators="H100:8", num_nodes=nodes, use_spot=spot)
        task = yaml.safe_load(backend.render(rented()).files["b1.yaml"])
        assert f"/launch/b1 100 3 25 {lost} python/bin/python" in task["run"]
    assert attempt(43, lost="42") == 42
    kill = "import os; os.kill(os.getpid(), 9)"
    assert attempt(0, program=kill, lost="42") == 43
    assert attempt(43, rank=1, lost="42") == 42  # its peer
    assert attempt(0, lost="42") == 0
    assert State.read(str(tmp_path)) == State(TASK, 60, attempt=3, preemptions=1, failures=1)


@pytest.mark.parametrize(
    ("accelerators", "says"),
    [
        ("tpu-v6e-slice:4", "such as tpu-v6e-4 or"),
        ("tpu-v5-lite-podslice:4", "such as tpu-v5litepod-4 or"),
        ("tpu-v6e-9", "v6e-9 does not exist; nearest: v6e-8"),
        ("h100-8", "--accelerators=h100-8: give H100:8"),
        ("a100-80g-4", "give A100-80GB:4"),
        ("4xh100-8", "give H100:8 --num_nodes=4"),
        ("h100-8:1", "give H100:8"),
        ("NVIDIA-H100:8", "give H100:8, as SkyPilot names it"),
        ("A100-40GB:4", "give A100:4, as SkyPilot names it"),
        ("a100-80g", "give A100-80GB:1"),
        ("nvidia-geforce-rtx-4090:2", "give RTX4090:2"),
        ("H100:1٨", "give a name and how many"),
        ("MI300X:8", "--accelerators=MI300X: not a GPU of NVIDIA"),
    ],
)
def test_other_accelerators_are_refused_with_names_of_skypilot(
    accelerators: str, says: str
) -> None:
    assert says in refusal(lambda: Sky(accelerators=accelerators).check(rented()))


def test_a_name_that_skypilot_refuses_is_refused_before_it_is_asked() -> None:
    BACKEND.check(dataclasses.replace(rented(), name="a--b"))
    line = refusal(lambda: BACKEND.check(dataclasses.replace(rented(), name="a----b")))
    assert line == "--name=a----b: SkyPilot takes at most two dashes in a row; give a--b"


@pytest.mark.parametrize("accelerators", ["H100-SXM:8", "H100-80GB:8", "A100-80GB:8", "RTX4090:1"])
def test_names_of_skypilot_that_compile_has_for_others_pass(accelerators: str) -> None:
    Sky(accelerators=accelerators).check(rented())


INFRA = ["xyz/!!", "a/b/c/d/e", "gcp/", "gcp/a/b/c", "AWS", "gcp/us-central1/us-central1-a", "*/x"]
INFRA += ["k8s/a/b/c", "Kubernetes", "*", "awsome", "/aws"]


@pytest.mark.parametrize("infra", INFRA)
def test_a_place_that_skypilot_has_not_is_refused(infra: str) -> None:
    def check() -> None:
        Sky(accelerators="H100:8", infra=infra).check(rented())

    if infra in INFRA[4:10]:
        check()
    else:
        assert refusal(check).startswith(f"--infra={infra}: give a cloud of SkyPilot, such as")
    if sky_schema.SCHEMAS.is_file():
        wrong = sky_schema.wrong_in({"resources": {"infra": infra}})
        assert any("infra" in one or infra in one for one in wrong) != (infra in INFRA[4:10])


@pytest.mark.parametrize("given", ["env", "env_from"])
def test_variables_of_skypilot_stay_its_own(given: str) -> None:
    """Restarts are counted by SKYPILOT_TASK_ID."""
    name = "SKYPILOT_TASK_ID"
    line = refusal(lambda: BACKEND.check(rented(**{given: ((name, name),)})))
    assert line == f"--{given}={name}=…: SkyPilot sets its variables itself; leave it out"


@pytest.mark.processes
@pytest.mark.parametrize(("code", "its"), [(44, 44), (2, 2), (-9, 43)])
def test_a_node_ends_as_its_process(attempt: Callable[..., int], code: int, its: int) -> None:
    kill = f"import os; os.kill(os.getpid(), {-code})" if code < 0 else ""
    assert attempt(code, program=kill) == its


@pytest.fixture
def bucket_fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """Makes the first writes of objects whose path has a text in it fail."""
    monkeypatch.setattr(retry, "sleep", lambda seconds: None)

    def fails(name: str, times: float) -> None:
        left = itertools.count()

        def put(path: str, data: bytes) -> None:
            if name in path and next(left) < times:
                raise ConnectionError("Cannot connect to host storage.googleapis.com")
            remote.put(path, data)

        monkeypatch.setattr(node, "put", put)

    return fails


@pytest.mark.processes
@pytest.mark.parametrize("name", ["codes/", "state.json"])
def test_a_bucket_that_fails_for_a_while_is_waited_for(
    attempt: Callable[..., int], tmp_path: Path, bucket_fails: Callable, name: str
) -> None:
    bucket_fails(name, 2)
    assert attempt(43) == 43
    assert node.codes_of(str(tmp_path), 1) == [43]


@pytest.mark.processes
@pytest.mark.parametrize(("code", "its"), [(42, 42), (43, 43), (1, 1), (0, 0)])
def test_an_end_that_cannot_be_noted_decides_all_the_same(
    attempt: Callable[..., int], bucket_fails: Callable, capfd: pytest.CaptureFixture, code: int,
    its: int,
) -> None:  # fmt: skip
    bucket_fails("codes/", math.inf)
    assert attempt(code) == its
    assert "codes/1/0: cannot be written (" in capfd.readouterr().out


@pytest.mark.processes
def test_a_node_that_cannot_note_its_end_is_not_recovered_after_stop(
    attempt: Callable[..., int], tmp_path: Path, bucket_fails: Callable
) -> None:
    bucket_fails("codes/", math.inf)
    stops = f"import sys; open({str(tmp_path / 'stop')!r}, 'w'); sys.exit(42)"
    assert attempt(42, program=stops) == 1


@pytest.mark.processes
def test_a_node_that_sees_stop_lets_its_process_save_and_is_not_recovered(
    attempt: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_POLL", 0.05)
    saves = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(42)); "
        "open('ready', 'w'); time.sleep(60)"
    )

    def stop() -> None:
        while not (tmp_path / "ready").exists():
            threading.Event().wait(0.01)
        (tmp_path / "stop").touch()

    asking = threading.Thread(target=stop)
    asking.start()
    assert attempt(42, program=saves) == 1
    asking.join()
    assert node.codes_of(str(tmp_path), 1) == [42]
