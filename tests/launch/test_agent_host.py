"""The agent of one host at work: a real process, a bucket in memory, a machine that is made up."""

import dataclasses
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from launch_jobs import AWKWARD, job
from memory_bucket import MemoryBucket

from bert_jax.exit_codes import LOST, STOPPED
from bert_jax.launch.bundle import make
from bert_jax.launch.restarts import Limits
from bert_jax.launch.tpu.agent import __main__ as program
from bert_jax.launch.tpu.agent import host as agent
from bert_jax.launch.tpu.agent import logs
from bert_jax.launch.tpu.agent.host import Host
from bert_jax.launch.tpu.agent.install import environment_folder, released
from bert_jax.launch.tpu.agent.machine import Machine, MachineError, Place
from bert_jax.launch.tpu.backend import Tpu
from bert_jax.launch.tpu.bucket import BucketError
from bert_jax.launch.tpu.history import READY as IS_READY
from bert_jax.launch.tpu.history import RUNNING, End, HostState, Plan, Retired
from bert_jax.launch.tpu.job_records import Records
from bert_jax.launch.tpu.submission import Submission

pytestmark = pytest.mark.processes

# In place of the trainer: prints what it was given, then does what the test says.
TRAINER = """#!{python}
import json, os, pathlib, signal, sys, time
folder = pathlib.Path({folder!r})
starts = len(list(folder.glob("start[0-9]*")))
names = [f"A{{i}}" for i in range({count})] + ["HF_TOKEN", "BERT_JAX_HOST_NAME", "MEGASCALE_X"]
names += ["GCE_METADATA_HOST"]
given = [sys.argv[1:], [os.environ.get(name) for name in names]]
(folder / "start.tmp").write_text(json.dumps(given))
(folder / "start.tmp").rename(folder / f"start{{starts}}")
saves = lambda *_: sys.exit(42)
print("attempt", starts + 1, flush=True)
{body}
"""


READY = "print('ready', flush=True)"


class FakeMachine(Machine):
    """A machine whose metadata and APIs a test sees."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[str] = []
        self.denies = self.leaves = False

    def get(self, path: str) -> str | None:
        return None

    def is_leaving(self) -> bool:
        return self.leaves

    def secret(self, name: str) -> str:
        return f"the value of {name}"

    def delete_resource(self, name: str) -> None:
        if self.denies:
            raise MachineError("tpu API: 403 denied")
        self.deleted.append(name)


class Site:
    """A job of one host, on this machine."""

    def __init__(self, folder: Path):
        self.folder, self.bucket, self.machine = folder, MemoryBucket(), FakeMachine()
        self.records = Records(self.bucket, 1)
        (folder / "my.py").write_text("")
        bundle = make("1.0", folder / "my.py", checkout=None)
        words = tuple(f"--config.data.store={word}" for word in AWKWARD)
        of = job(
            "v4-8",
            bundle=bundle,
            command=("pretrain", "--config=my.py", *words, "--workdir=gs://bucket/b1"),
            env=tuple((f"A{i}", word) for i, word in enumerate(AWKWARD)),
            env_from=(("HF_TOKEN", "hf"),),
            limits=Limits(grace=5.0, noticing=1.0, margin=1.0, between=0.0, max_failures=2),
        )
        rendering = Tpu(zone="us-central2-b").render(of)
        self.submission = Submission.from_json(json.loads(rendering.files["job.json"]))
        self.bucket.write("0001/job.json", rendering.files["job.json"].encode())
        self.bucket.write(f"{bundle.name}.tar", bundle.archive)
        self.place = Place(0, 1, "127.0.0.1:8476")

    def trainer(self, body: str) -> None:
        """Makes a program the Python of the environment that the agent finds installed."""
        python = environment_folder(self.folder, released("1.0")) / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(
            TRAINER.format(
                python=sys.executable, folder=str(self.folder), count=len(AWKWARD), body=body
            )
        )
        python.chmod(0o755)

    def host(self) -> Host:
        return Host(self.machine, self.place, self.records, self.submission, 1, "b1-1", self.folder)

    def starts(self) -> list[list]:
        found = sorted(self.folder.glob("start[0-9]*"))
        return [json.loads(path.read_text()) for path in found]

    def output(self) -> str:
        pieces = self.bucket.list("logs/0001/1/0/")
        texts = [self.bucket.read(p.name).decode() for p in pieces if "/0000-" not in p.name]
        return "".join(texts)

    def later(self, action, condition=lambda: True) -> None:
        """Does something in a thread as soon as a condition holds."""

        def wait() -> None:
            end = time.monotonic() + 30
            while not condition() and time.monotonic() < end:
                time.sleep(0.01)
            action()

        threading.Thread(target=wait, daemon=True).start()


@pytest.fixture
def at(tmp_path, monkeypatch):
    monkeypatch.setattr(agent, "_TICK", 0.02)
    monkeypatch.setattr(logs, "_EVERY", 0.0)
    monkeypatch.setenv("MEGASCALE_X", "of a slice that is gone")
    old = signal.getsignal(signal.SIGTERM)
    yield Site(tmp_path)
    signal.signal(signal.SIGTERM, old)


def test_words_variables_and_secrets_arrive_as_they_are(at):
    at.trainer("sys.exit(0)")
    at.host().run()
    ((words, values),) = at.starts()
    root = at.folder / f"bundle-{at.submission.bundle[:16]}"
    assert words == [
        "-m", "bert_jax", "pretrain", f"--config={root}/config/my.py",
        *(f"--config.data.store={word}" for word in AWKWARD), "--workdir=gs://bucket/b1",
        "--coordinator=127.0.0.1:8476", "--num_processes=1", "--process_id=0", "--topology=v4-8",
    ]  # fmt: skip
    server = "metadata.google.internal"  # of notices, which the process watches itself
    assert values == [*AWKWARD, "the value of hf", "host-0", None, server]
    everything = b"".join(at.bucket.read(entry.name) for entry in at.bucket.list())
    assert b"the value of hf" not in everything


def test_exit_codes_restart_or_end_the_job_and_the_machines_are_given_back(at):
    at.trainer("sys.exit([42, 43, 0][starts])")
    at.host().run()
    assert at.output() == "attempt 1\nattempt 2\nattempt 3\n"
    snapshot = at.records.snapshot()
    assert snapshot.end == End(0, "host-0 ended with 0")
    assert [a.code for a in snapshot.histories[0].plan.attempts] == [42, 43, 0]
    assert at.machine.deleted == ["b1-1"]


def test_an_error_ends_the_job_at_once(at):
    at.trainer("sys.exit(1)")
    at.host().run()
    assert at.records.snapshot().end == End(1, "host-0 ended with 1; not started again")
    assert len(at.starts()) == 1


def test_a_request_to_stop_is_obeyed(at):
    at.trainer(f"signal.signal(signal.SIGTERM, saves)\n{READY}\ntime.sleep(600)")
    at.later(lambda: at.records.mark("stop"), lambda: "ready" in at.output())
    at.host().run()
    assert at.records.snapshot().end == End(42, "host-0 ended with 42")
    assert at.machine.deleted == ["b1-1"]


def test_an_end_that_a_launcher_recorded_is_obeyed_by_a_host_at_work(at):
    """That launcher may have died before it could delete the machines."""
    at.trainer(f"signal.signal(signal.SIGTERM, saves)\n{READY}\ntime.sleep(600)")
    given_up = End(43, "host-1: no report for 15 minutes")
    at.later(lambda: at.records.set_end(given_up), lambda: "ready" in at.output())
    at.host().run()
    assert at.records.plan(1).attempts[0].code == 42, "it saved"
    assert at.records.snapshot().end == given_up
    assert at.machine.deleted == ["b1-1"]


class Clock:
    """The module `time` of an agent, a hundred times as fast."""

    strftime = staticmethod(time.strftime)

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / 100)
        self.now += seconds


def test_no_machine_is_left_a_minute_after_the_end(at, monkeypatch):
    """Also if another host does not report its end: its last lines are waited for, not longer."""
    clock = Clock()
    monkeypatch.setattr(agent, "_TICK", 2.0)
    monkeypatch.setattr(agent, "time", clock)
    at.place = Place(0, 2, "127.0.0.1:8476")
    at.trainer("sys.exit(0)")
    ended: list[float] = []
    at.records.set_host(1, 1, HostState("boot", IS_READY))
    planned, reported = at.records.set_plan, at.records.set_host

    def set_plan(number: int, plan: Plan) -> None:
        planned(number, plan)
        if plan.is_running:  # the other process ends, and its host is gone
            reported(1, 1, HostState("boot", RUNNING, 1, 0))

    def set_host(number: int, index: int, state: HostState) -> None:
        reported(number, index, state)
        if state.code == 0 and not ended:  # not before: a process starts as fast as a machine can
            ended.append(clock.now)

    monkeypatch.setattr(at.records, "set_plan", set_plan)
    monkeypatch.setattr(at.records, "set_host", set_host)
    at.host().run()
    assert at.records.snapshot().end == End(0, "host-1, host-0 ended with 0")
    assert at.machine.deleted == ["b1-1"]
    assert 30.0 < clock.now - ended[0] < 60.0


def test_a_process_that_does_not_stop_is_killed(at, monkeypatch):
    at.submission = dataclasses.replace(
        at.submission, limits=Limits(grace=0.2, margin=0.2, max_failures=0)
    )
    at.trainer(f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{READY}\ntime.sleep(600)")
    at.later(lambda: at.records.mark("stop"), lambda: "ready" in at.output())
    at.host().run()
    assert at.records.snapshot().end.code == 42
    assert at.machine.deleted == ["b1-1"]


def test_a_machine_that_shuts_down_saves_and_the_next_start_continues(at):
    body = f"signal.signal(signal.SIGTERM, saves)\n{READY}\ntime.sleep(600 if starts == 0 else 0)"
    at.trainer(body)
    at.later(lambda: os.kill(os.getpid(), signal.SIGTERM), lambda: "ready" in at.output())
    at.host().run()
    snapshot = at.records.snapshot()
    assert snapshot.end is None
    assert [a.code for a in snapshot.histories[0].plan.attempts] == [42]
    at.host().run()
    assert at.records.snapshot().end.code == 0


def test_no_attempt_starts_before_a_preemption_that_was_announced(at):
    """It would be stopped at once, again and again, until the budget is used up."""
    started: list[int] = []

    def stay() -> None:
        time.sleep(0.5)
        started.append(len(at.starts()))
        at.machine.leaves = False

    def leave() -> None:
        at.machine.leaves = True
        (at.folder / "leaves").touch()

    at.trainer(
        "while not (folder / 'leaves').exists(): time.sleep(0.01)\nsys.exit(0 if starts else 42)"
    )
    at.later(leave, lambda: len(at.starts()) == 1)
    at.later(stay, lambda: at.records.plan(1).attempts[:1] and not at.records.plan(1).is_running)
    at.host().run()
    assert started == [1]
    assert at.records.snapshot().end.code == 0


def test_an_agent_that_was_killed_counts_a_failure_and_continues(at):
    at.trainer("sys.exit(0)")
    first = at.host()
    first._step()
    first._step()
    first._step()  # an attempt is planned, and its agent is gone
    assert at.records.plan(1).is_running
    if first._process:
        first._process.kill()
        first._process.close()
    at.host().run()
    plan = at.records.plan(1)
    assert [attempt.code for attempt in plan.attempts] == [43, 0]


def test_a_bucket_that_fails_now_and_then_changes_nothing(at):
    draw = random.Random(0).random

    def sometimes(what: str) -> None:
        if draw() < 0.2:
            raise BucketError("503")

    at.trainer("sys.exit([43, 0][starts])")
    at.bucket.before = at.bucket.after = sometimes
    at.host().run()
    at.bucket.before = at.bucket.after = lambda what: None
    assert at.records.snapshot().end.code == 0
    assert at.output() == "attempt 1\nattempt 2\n"


def test_a_plan_that_the_bucket_did_not_take_is_written_again(at, monkeypatch):
    """The other hosts act on what is written."""
    plans, set_plan = [], at.records.set_plan

    def every_second_fails(number, plan):
        plans.append(plan)
        if len(plans) % 2 == 0:
            raise BucketError("503")
        set_plan(number, plan)

    monkeypatch.setattr(at.records, "set_plan", every_second_fails)
    at.trainer("sys.exit([43, 0][starts])")
    at.host().run()
    assert [attempt.code for attempt in at.records.plan(1).attempts] == [43, 0]
    assert at.records.plan(1).final == End(0, "host-0 ended with 0")


def test_a_machine_that_may_not_delete_itself_says_so(at, monkeypatch):
    monkeypatch.setattr(agent, "_DELETES", 2)
    at.machine.denies = True
    at.trainer("sys.exit(0)")
    at.host().run()
    snapshot = at.records.snapshot()
    assert snapshot.end.code == 0
    assert snapshot.hosts[1][0][0].line == "tpu API: 403 denied"


def test_no_attempt_starts_on_machines_that_a_launcher_has_given_up(at):
    """Others are made for the job: two trainers would write to one workdir."""
    given_up = Retired(LOST, "host-1: no report for 15 minutes")
    at.trainer(f"{READY}\ntime.sleep(0.3)\nsys.exit(43)")
    at.later(lambda: at.records.retire(1, given_up), lambda: "ready" in at.output())
    at.host().run()
    assert at.machine.deleted == ["b1-1"]
    assert at.records.snapshot().end is None, "the job goes on elsewhere"
    assert len(at.starts()) == 1
    at.host().run()  # the agent is started again, while the machines are given back
    assert len(at.starts()) == 1


@pytest.mark.parametrize("what", ["ended", "deleted", "given up", "run again"])
def test_machines_that_come_after_the_end_of_the_job_are_given_back(at, monkeypatch, what):
    """A request for them may reach the API late, when no launcher is left to see them."""
    about = {
        "records": at.bucket.url, "run": 1, "submission": "s1", "number": 2, "name": "b1-2",
    }  # fmt: skip
    attributes = {"bert-jax-resource": json.dumps(about)}
    monkeypatch.setattr(at.machine, "attribute", attributes.get)
    monkeypatch.setattr(at.machine, "place", lambda: at.place)
    monkeypatch.setattr(program, "Machine", lambda: at.machine)
    monkeypatch.setattr(program, "Bucket", lambda url, token: at.bucket)
    monkeypatch.setenv("BERT_JAX_HOME", str(at.folder / "home"))
    submission = dataclasses.replace(at.submission, id="s2" if what == "run again" else "s1")
    at.bucket.write_json("0001/job.json", submission.to_json())
    if what == "ended":
        at.records.set_end(End(42, "stopped"))
    elif what == "given up":
        at.records.retire(2, Retired(STOPPED, "preempted"))
    elif what == "deleted":
        at.bucket.delete("0001/job.json")
    for denies in (False, True):
        at.machine.denies = denies
        assert program.main() == 0
    assert at.machine.deleted == ["b1-2"]
    assert not (at.folder / "home").exists(), "nothing was installed"
    if what in ("given up", "run again"):
        assert at.records.snapshot().end is None


def test_code_that_cannot_be_installed_ends_the_job_with_its_line(at):
    at.bucket.write(f"bundle-{at.submission.bundle[:16]}.tar", b"something else")
    at.trainer("sys.exit(0)")
    at.host().run()
    end = at.records.snapshot().end
    assert end.code == 1
    assert "its sha256 is" in end.why
    assert at.starts() == []
