"""Tests of real processes that are asked to stop during every activity: saved, exit code 42."""

import dataclasses
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import (
    LIMIT,
    Job,
    assert_same_bits,
    config_file,
    newest_step,
    run,
)
from runs import complete_steps
from signals import with_signals

from bert_jax.config.schema import Config
from bert_jax.exit_codes import LOST, STOPPED
from bert_jax.metrics import run_records
from bert_jax.workdir.layout import Workdir

pytestmark = pytest.mark.processes

STEPS = 16  # evaluated after 8 and 16, saved after every second
FOREVER = 1000.0  # seconds that a test does not last
SLOW_STEPS = {"batch": [3, 0.4]}  # so that there is a while left in which to ask
PROGRAM = (str(Path(__file__).parents[1] / "support" / "slow_process.py"),)


@pytest.fixture
def start(disturbed, tmp_path) -> Iterator[Any]:
    """Starts the run with one slow activity; kills it after the test."""
    jobs = []

    def start(slow: dict[str, Any], **options: Any) -> Job:
        limits = {k: options.pop(k) for k in ("grace", "start") if k in options}
        deadlines = dataclasses.replace(disturbed.deadlines, **limits)
        changed = dataclasses.replace(disturbed, deadlines=deadlines)
        options["env"] = {"SLOW": json.dumps(slow), **options.get("env", {})}
        jobs.append(
            Job(changed, tmp_path / "run", tmp_path, processes=2, program=PROGRAM, **options)
        )
        return jobs[-1]

    yield start
    for job in jobs:
        job.__exit__(AssertionError)


def events(workdir: Path, kind: str) -> list[dict[str, Any]]:
    """Returns all records of a kind, including repeated steps."""
    found = run_records.records(Workdir.open(workdir).metrics)
    return [record for record in found if record["kind"] == kind]


def assert_saved(job: Job, workdir: Path) -> int:
    """Asserts that all exited with 42 at the same, newest saved step; returns the step."""
    assert job.codes() == [STOPPED] * len(job.processes)
    stopped = [re.findall(r"^stops at step (\d+)$", p.said(), re.M) for p in job.processes]
    (step,) = {int(number) for numbers in stopped for number in numbers}
    assert all(len(numbers) == 1 for numbers in stopped)
    assert complete_steps(workdir)[-1] == step
    assert all(path.name.isdecimal() for path in Workdir.open(workdir).checkpoints.iterdir())
    noted = events(workdir, "stopped")[-1]
    assert (noted["step"], noted["code"]) == (step, STOPPED)
    assert f"saved step {step} in {workdir}" in job.processes[0].said()
    assert not any("Traceback" in process.said() for process in job.processes)
    return step


def assert_goes_on(config: Config, whole: Path, tmp_path: Path) -> None:
    """Runs the same command again: the results equal an undisturbed run's."""
    run(config, tmp_path / "run", tmp_path, processes=2)
    assert_same_bits(whole, tmp_path / "run")


slow_1 = pytest.param(1, marks=pytest.mark.slow)
night_0 = pytest.param(0, marks=pytest.mark.nightly)
night_1 = pytest.param(1, marks=pytest.mark.nightly)


@pytest.mark.parametrize("told", [night_0, slow_1])
def test_stepping(told, disturbed, undisturbed, start, tmp_path):
    job = start(SLOW_STEPS)
    job.wait_for(lambda: newest_step(tmp_path / "run") >= 3, "a step")
    job.send(signal.SIGTERM, told)
    assert 3 <= assert_saved(job, tmp_path / "run") < STEPS
    assert f"SIGTERM to host-{told}" in events(tmp_path / "run", "stopped")[-1]["reason"]
    assert_goes_on(disturbed, undisturbed, tmp_path)


@pytest.mark.slow
def test_a_time_limit(disturbed, undisturbed, start, tmp_path):
    """Counted from the start of the command: saved and ended before it is over."""
    begin = time.monotonic()
    job = start({"batch": [3, 3.0]}, grace=20.0, flags=("--time_limit=1m",))
    assert 3 <= assert_saved(job, tmp_path / "run") < STEPS
    assert time.monotonic() - begin < 60
    assert events(tmp_path / "run", "stopped")[-1]["reason"] == "--time_limit=1m"
    assert_goes_on(disturbed, undisturbed, tmp_path)


@pytest.mark.parametrize("told", [night_0, night_1])
def test_evaluating(told, disturbed, undisturbed, start, tmp_path):
    """In the middle of the run: the rest of the evaluation is done after resuming."""
    job = start({"host": "host-1", "held_out": 0.6})
    job.wait_for(lambda: newest_step(tmp_path / "run") == 8, "an evaluation")
    job.send(signal.SIGTERM, told)
    assert assert_saved(job, tmp_path / "run") == 8
    assert not events(tmp_path / "run", "eval")
    assert_goes_on(disturbed, undisturbed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("told", [0, 1])
def test_the_evaluation_at_the_end(told, disturbed, undisturbed, start, tmp_path):
    """All steps are done: the next start evaluates, the one after it has nothing to do."""
    job = start({"held_out": 0.6})
    job.wait_for(lambda: newest_step(tmp_path / "run") == STEPS, "the last step")
    job.send(signal.SIGTERM, told)
    assert assert_saved(job, tmp_path / "run") == STEPS
    assert [record["step"] for record in events(tmp_path / "run", "eval")] == [8]
    assert_goes_on(disturbed, undisturbed, tmp_path)
    run(disturbed, tmp_path / "run", tmp_path, processes=2)
    assert [record["step"] for record in events(tmp_path / "run", "eval")] == [8, STEPS]


@pytest.mark.parametrize("told", [night_0, night_1])
def test_saving(told, disturbed, undisturbed, start, tmp_path):
    """While a checkpoint is being written, and with another that has to wait for that."""
    job = start({"write": 3.0})
    job.wait_for_line("slow write")
    job.send(signal.SIGTERM, told)
    assert assert_saved(job, tmp_path / "run") < STEPS
    assert_goes_on(disturbed, undisturbed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("told", [0, 1])
def test_one_process_waits_for_data(told, disturbed, undisturbed, start, tmp_path):
    """The other is in that step already: both finish it once the data arrives."""
    job = start({"host": "host-1", "batch": [5, 6.0]})
    job.wait_for(lambda: newest_step(tmp_path / "run") == 5, "a step that waits for data")
    job.send(signal.SIGTERM, told)
    assert assert_saved(job, tmp_path / "run") == 6
    assert_goes_on(disturbed, undisturbed, tmp_path)


@pytest.mark.parametrize("told", [night_0, night_1])
def test_all_wait_for_data(told, disturbed, undisturbed, start, tmp_path):
    """No process waits for it any longer."""
    job = start({"batch": [5, FOREVER]})
    job.wait_for(lambda: newest_step(tmp_path / "run") == 5, "a step that waits for data")
    job.send(signal.SIGTERM, told)
    assert assert_saved(job, tmp_path / "run") == 5
    assert_goes_on(disturbed, undisturbed, tmp_path)


@pytest.mark.parametrize("told", [night_0, slow_1])
def test_compiling(told, start, tmp_path):
    """Nothing is unsaved yet, so no process waits for the compiler."""
    job = start({"compile": FOREVER})
    for process in (0, 1):
        job.wait_for_line("slow compile", process)
    job.send(signal.SIGTERM, told)
    assert job.codes() == [STOPPED] * 2
    for process in job.processes:
        assert f"SIGTERM to host-{told}" in process.said()
        assert "stopped before the first step, nothing is lost" in process.said()
        assert "Traceback" not in process.said()
    assert complete_steps(tmp_path / "run") == []
    assert events(tmp_path / "run", "train") == []


@pytest.mark.nightly
def test_compiling_after_a_restart(disturbed, undisturbed, start, tmp_path):
    """Checkpoints of earlier attempts stay unchanged."""
    job = start({"batch": [5, FOREVER]})
    job.wait_for(lambda: newest_step(tmp_path / "run") == 5, "a step that waits for data")
    job.send(signal.SIGTERM, 0)
    assert assert_saved(job, tmp_path / "run") == 5
    job = start({"compile": FOREVER})
    job.wait_for_line("slow compile", 1)
    job.send(signal.SIGTERM, 1)
    assert job.codes() == [STOPPED] * 2
    assert complete_steps(tmp_path / "run")[-1] == 5
    assert_goes_on(disturbed, undisturbed, tmp_path)


@pytest.mark.nightly
def test_waiting_for_the_others_at_the_start(start, tmp_path):
    """One exits at once; the late one finds no coordinator and reports it."""
    job = start({}, start=30.0)
    job.send(signal.SIGSTOP, 1)
    job.wait_for_line("missing: process 1", 0)
    job.send(signal.SIGTERM, 0)
    job.processes[0].popen.wait(LIMIT)
    job.send(signal.SIGCONT, 1)
    assert job.codes() == [STOPPED, LOST]
    assert "nothing is lost" in job.processes[0].said()
    assert "Traceback" not in job.said()
    assert not (tmp_path / "run").exists()


@pytest.mark.nightly
def test_every_process_is_sent_every_signal(disturbed, undisturbed, start, tmp_path):
    """As from a cluster, twice: a later Ctrl-C to another process is not a second one."""
    job = start({"host": "host-1", "batch": [5, 3.0]})
    job.wait_for(lambda: newest_step(tmp_path / "run") == 5, "a step that waits for data")
    job.send(signal.SIGINT, 0)
    job.wait_for_line("asked to stop", 1)
    job.send(signal.SIGINT, 1)
    for process in (0, 1, 0, 1):
        job.send(signal.SIGTERM, process)
    assert assert_saved(job, tmp_path / "run") == 6
    assert_goes_on(disturbed, undisturbed, tmp_path)


@pytest.mark.nightly
def test_every_process_at_the_same_time(disturbed, undisturbed, start, tmp_path):
    job = start(SLOW_STEPS)
    job.wait_for(lambda: newest_step(tmp_path / "run") >= 3, "a step")
    job.send(signal.SIGTERM, 0)
    job.send(signal.SIGTERM, 1)
    assert assert_saved(job, tmp_path / "run") < STEPS
    assert_goes_on(disturbed, undisturbed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("told", [0, 1])
def test_ctrl_c_twice(told, disturbed, undisturbed, start, tmp_path):
    """The second ends all of them at once; earlier checkpoints remain."""
    job = start({"host": "host-1", "batch": [5, FOREVER]})
    job.wait_for(lambda: newest_step(tmp_path / "run") == 5, "a step that waits for data")
    job.send(signal.SIGINT, told)
    for process in (0, 1):
        job.wait_for_line("asked to stop", process)
    job.send(signal.SIGINT, told)
    assert job.codes() == [130, 130]
    for process in job.processes:
        assert "interrupted without saving" in process.said()
        assert "Traceback" not in process.said()
    assert complete_steps(tmp_path / "run")[-1] == 4
    assert_goes_on(disturbed, undisturbed, tmp_path)


@pytest.mark.parametrize("told", [night_0, night_1])
def test_one_that_cannot_save_in_time(told, disturbed, undisturbed, start, tmp_path):
    """After the grace period they exit with 43 and report which and why."""
    job = start({"host": "host-1", "batch": [5, FOREVER]}, grace=4.0)
    job.wait_for(lambda: newest_step(tmp_path / "run") == 5, "a step that waits for data")
    job.send(signal.SIGTERM, told)
    assert job.codes() == [LOST] * 2
    for process in job.processes:
        assert "not saved within 4 s (config.deadlines.grace)" in process.said()
        assert f"SIGTERM to host-{told}" in process.said()
    assert "stacks of all threads:" in job.said()
    assert complete_steps(tmp_path / "run")[-1] == 4
    assert_goes_on(disturbed, undisturbed, tmp_path)


@pytest.mark.nightly
def test_one_process_is_stopped_when_another_is_told(disturbed, undisturbed, start, tmp_path):
    """A suspended process neither agrees nor saves: the grace period ends the others."""
    job = start(SLOW_STEPS, grace=6.0)
    job.wait_for(lambda: newest_step(tmp_path / "run") >= 4, "a step")
    job.send(signal.SIGSTOP, 1)
    job.send(signal.SIGTERM, 0)
    assert job.processes[0].popen.wait(LIMIT) == LOST
    assert "not saved within 6 s (config.deadlines.grace)" in job.processes[0].said()
    job.send(signal.SIGCONT, 1)
    assert job.codes() == [LOST] * 2
    assert_goes_on(disturbed, undisturbed, tmp_path)


class Notices(http.server.BaseHTTPRequestHandler):
    """The metadata server of a Compute Engine machine."""

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        is_asked_well = self.headers["Metadata-Flavor"] == "Google"
        self.send_response(200 if is_asked_well else 403)
        self.end_headers()
        self.wfile.write(self.server.says[name].encode() + b"\n")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.nightly
@pytest.mark.parametrize(
    "notice",
    [
        {"maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"},
        {"preempted": "TRUE"},
    ],
)
def test_the_maintenance_notice_of_one_machine(notice, disturbed, undisturbed, start, tmp_path):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Notices) as server:
        server.says = {"maintenance-event": "NONE", "preempted": "FALSE"}
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            address = f"127.0.0.1:{server.server_port}"
            job = start({"batch": [3, 1.5]}, env_of={1: {"GCE_METADATA_HOST": address}})
            job.wait_for(lambda: newest_step(tmp_path / "run") >= 3, "a step")
            assert not events(tmp_path / "run", "stopped")
            server.says |= notice
            assert 3 <= assert_saved(job, tmp_path / "run") < STEPS
        finally:
            server.shutdown()
            thread.join()
    ((name, said),) = notice.items()
    reason = events(tmp_path / "run", "stopped")[-1]["reason"]
    assert reason == f"{name} {said} of host-1 (process 1)"
    assert_goes_on(disturbed, undisturbed, tmp_path)


# Through the launcher


class Launched:
    """`bert-jax launch local run` with two processes, and its output."""

    def __init__(self, config: Config, workdir: Path, folder: Path, slow: dict[str, Any]):
        self.output = folder / f"launcher_{time.monotonic_ns()}.txt"
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                with_signals(
                    [
                        *(sys.executable, *PROGRAM, "launch", "local", "run", "--processes=2"),
                        *("pretrain", f"--config={config_file(config, folder / 'launched.py')}"),
                        *(f"--workdir={workdir}", "--cpu_devices=2"),
                    ]
                ),
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "SLOW": json.dumps(slow)},
            )

    def __enter__(self) -> "Launched":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        """Its processes end with it."""
        self.process.kill()
        self.process.wait()
        if kind is not None:
            print(self.said())

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for(self, condition: Any, what: str) -> None:
        end = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < end, f"no {what}"
            assert self.process.poll() is None, f"ended before {what}"
            time.sleep(0.02)

    def pids(self) -> list[int]:
        """Of the processes of each start, in the order of their names."""
        return [int(pid) for pid in re.findall(r"host-\d is process (\d+)", self.said())]


@pytest.mark.nightly
def test_the_launcher_is_told(disturbed, undisturbed, tmp_path):
    workdir = tmp_path / "run"
    with Launched(disturbed, workdir, tmp_path, SLOW_STEPS) as job:
        job.wait_for(lambda: newest_step(workdir) >= 3, "step")
        job.process.send_signal(signal.SIGTERM)
        assert job.process.wait(LIMIT) == STOPPED
        stops = set(re.findall(r"^host-(\d) \| stops at step (\d+)$", job.said(), re.M))
    assert stops == {(host, str(complete_steps(workdir)[-1])) for host in "01"}
    assert_goes_on(disturbed, undisturbed, tmp_path)


@pytest.mark.parametrize(
    "stopped",
    [
        pytest.param((1,), id="once", marks=pytest.mark.slow),
        pytest.param((1, 0), id="twice", marks=pytest.mark.nightly),
    ],
)
def test_the_launcher_starts_again_what_was_stopped(stopped, disturbed, undisturbed, tmp_path):
    """A different process each time; the finished run equals an undisturbed one."""
    workdir = tmp_path / "run"
    with Launched(disturbed, workdir, tmp_path, {"batch": [3, 0.7]}) as job:
        for attempt, told in enumerate(stopped):
            before = newest_step(workdir)
            job.wait_for(lambda n=before: newest_step(workdir) > n, f"step after {before}")
            os.kill(job.pids()[2 * attempt + told], signal.SIGTERM)
            again = attempt + 1
            job.wait_for(lambda n=again: job.said().count("starting again") == n, "restart")
        assert job.process.wait(LIMIT) == 0
        assert len(job.pids()) == 2 * (1 + len(stopped))
    assert [record["code"] for record in events(workdir, "stopped")] == [STOPPED] * len(stopped)
    assert_same_bits(undisturbed, workdir)
