"""Jobs in a real Slurm of one node: what stops, preempts and kills them, and how they resume."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from launch_jobs import job
from processes import assert_same_bits, config_file, newest_step
from runs import read_records
from slurm_cluster import missing, slurm

from bert_jax.config.schema import Config
from bert_jax.launch.preflight import CheckFailedError
from bert_jax.launch.slurm.backend import Slurm
from bert_jax.launch.slurm.requeue import State

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.xdist_group("engines"),  # these mostly wait, so other tests with processes need not
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
LIMIT = 600  # seconds for whatever is waited for, on a busy machine
# Beside the config file, which imports it: from step 4 on each batch takes a while, until the test
# has disturbed the run.
SLOW = """
import pathlib, time
from bert_jax.data_pipeline.batch import Batches

original = Batches.batch

def batch(self, step, rows):
    if len(rows) and step >= 4 and pathlib.Path({marker!r}).exists():
        time.sleep(6)
    return original(self, step, rows)

Batches.batch = batch
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    with slurm(tmp_path_factory.mktemp("slurm")) as env:
        yield env


class Launch:
    """A job of two tasks, and the commands of its user in one folder."""

    def __init__(self, folder: Path, config: Config, env: Mapping[str, str]):
        self.folder, self.workdir, self.env = folder, folder / "run", {**os.environ, **env}
        self.slow = folder / "slow"
        self.slow.touch()
        (folder / "slow_batches.py").write_text(SLOW.format(marker=str(self.slow)))
        path = config_file(config, folder / "mine.py")
        path.write_text(f"import slow_batches\n{path.read_text()}")
        self._made: list[subprocess.Popen] = []

    def __enter__(self) -> "Launch":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._made:
            process.kill()
            process.wait()
        subprocess.run(["scancel", "--name=b1"], env=self.env, check=False)

    def start(self, *flags: str) -> subprocess.Popen:
        """`launch slurm run`, in the background; its output goes to `run.txt`."""
        words = [
            "run", "--name=b1", "--tasks_per_node=2", "--allow_dirty", *flags, "pretrain",
            "--config=mine.py", f"--workdir={self.workdir.name}", "--cpu_devices=2",
        ]  # fmt: skip
        with (self.folder / "run.txt").open("ab") as out:
            self._made.append(
                subprocess.Popen(
                    [sys.executable, "-m", "bert_jax", "launch", "slurm", *words],
                    cwd=self.folder,
                    env={**self.env, "PYTHONPATH": f"{self.folder}:{os.getcwd()}"},
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
        return self._made[-1]

    def call(self, verb: str, *flags: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "bert_jax", "launch", "slurm", verb, "--name=b1",
             f"--workdir={self.workdir}", *flags],
            env=self.env, capture_output=True, text=True, check=False, timeout=LIMIT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def said(self) -> str:
        return (self.folder / "run.txt").read_text()

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < end, self.said()
            time.sleep(0.1)

    def until_step(self, step: int) -> None:
        self.until(lambda: newest_step(self.workdir) >= step)

    def until_said(self, text: str) -> None:
        self.until(lambda: text in self.said())

    def has_used(self, preemptions: int = 0, failures: int = 0) -> bool:
        """Whether the job has been restarted so often."""
        state = State.read(self.workdir / "launch/b1")
        return state is not None and (state.preemptions, state.failures) == (preemptions, failures)

    def state(self) -> State:
        state = State.read(self.workdir / "launch/b1")
        assert state is not None, self.said()
        return state


@pytest.fixture
def launch(disturbed, cluster, tmp_path_factory) -> Iterator[Launch]:
    """A job in a folder that is the same in each test: what numba compiles is known by its path."""
    folder = tmp_path_factory.getbasetemp() / "job"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with Launch(folder, disturbed, cluster) as job:
        yield job


def test_slurm_itself_refuses_options_before_anything_is_created(cluster, monkeypatch, tmp_path):
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)

    def probe(**options: object) -> str:
        of = job(workdir=str(tmp_path / "run"), cwd=str(tmp_path))
        checks = Slurm(**options).checks(of)
        return next(check for check in checks if check.name == "sbatch").probe()

    assert probe(time="1-0", tasks_per_node=2) == "accepted by Slurm"
    for options in ({"partition": "gone"}, {"nodes": 9}, {"sbatch": ("--qos-x=1",)}):
        with pytest.raises(CheckFailedError, match="sbatch refuses it: "):
            probe(**options)
    assert not (tmp_path / "run").exists()


def test_stopped_and_run_again_it_ends_with_the_same_bits(launch, undisturbed):
    process = launch.start()
    launch.until_step(4)
    assert re.search(r"Slurm job \d+: running", launch.call("status"))
    launch.call("stop")
    launch.slow.unlink()
    assert process.wait(LIMIT) == 42, launch.said()
    assert launch.state().end == 42
    assert newest_step(launch.workdir) < 16
    assert "ended with 42" in launch.call("status")
    again = launch.start()
    assert again.wait(LIMIT) == 0, launch.said()
    assert_same_bits(undisturbed, launch.workdir)
    # What `run` showed and what `logs` prints is the log, each line once.
    log = (launch.workdir / "launch/b1/log").read_text()
    assert launch.call("logs") == log
    shown = [line for line in launch.said().splitlines() if re.match(r"\d+: ", line)]
    assert shown == [line for line in log.splitlines() if re.match(r"\d+: ", line)]
    assert sum("step 16/16" in line for line in shown) == 1
    launch.call("delete")
    assert not (launch.workdir / "launch/b1").exists()
    assert newest_step(launch.workdir) == 16, "the run itself stays"


def test_preempted_and_with_a_task_killed_it_comes_back_with_the_same_bits(launch, undisturbed):
    process = launch.start("--partition=low", "--max_failures=1")
    launch.until_step(4)
    high = ["sbatch", "--partition=high", "--ntasks=2", "--output=/dev/null", "--wrap=sleep 2"]
    subprocess.run(high, env=launch.env, check=True, capture_output=True)
    launch.until(lambda: launch.has_used(preemptions=1))
    (stopped,) = read_records(launch.workdir, "stopped")
    assert (stopped["code"], stopped["step"]) == (42, newest_step(launch.workdir)), "it saved"
    launch.until_step(stopped["step"] + 1)
    (pid, _) = trainers(launch.workdir)
    os.kill(pid, signal.SIGKILL)
    launch.slow.unlink()
    assert process.wait(LIMIT) == 0, launch.said()
    assert launch.has_used(preemptions=1, failures=1)
    assert "(0 of 1 failures left)" in launch.said()
    assert "was killed by SIGKILL" in launch.said()
    assert_same_bits(undisturbed, launch.workdir)


def test_cancelled_by_scancel_it_does_not_come_back(launch):
    process = launch.start()
    launch.until_step(4)
    (number,) = set(re.findall(r"Slurm job (\d+)", launch.said()))
    launch.slow.unlink()
    subprocess.run(["scancel", number], env=launch.env, check=True, capture_output=True)
    assert process.wait(LIMIT) == 42, launch.said()
    assert launch.state().end == 42
    assert launch.has_used(preemptions=0, failures=0)


def test_preempted_without_a_grace_time_it_comes_back(launch):
    """Slurm itself requeues it then, while its tasks save."""

    def grace_time(seconds: int) -> None:
        words = ["scontrol", "update", "PartitionName=low", f"GraceTime={seconds}"]
        subprocess.run(words, env=launch.env, check=True, capture_output=True)

    grace_time(0)
    try:
        process = launch.start("--partition=low")
        launch.until_step(4)
        high = ["sbatch", "--partition=high", "--ntasks=2", "--output=/dev/null", "--wrap=sleep 2"]
        subprocess.run(high, env=launch.env, check=True, capture_output=True)
        launch.until(lambda: launch.has_used(preemptions=1))
        launch.slow.unlink()
        assert process.wait(LIMIT) == 0, launch.said()
        assert launch.has_used(preemptions=1)
    finally:
        grace_time(60)


@pytest.mark.nightly
def test_before_its_time_limit_it_saves_and_comes_back_though_its_launcher_is_killed(
    launch, undisturbed
):
    limits = ("--time=1", "--grace=5")  # minutes, and seconds
    launch.start(*limits).send_signal(signal.SIGKILL)  # before, while or after it submits
    first = launch.start(*limits)
    launch.until_step(2)
    first.kill()
    second = launch.start(*limits)
    launch.until_said("is this one")
    launch.until(lambda: State.read(launch.workdir / "launch/b1"))
    launch.slow.unlink()
    (number,) = set(re.findall(r"Slurm job (\d+)", launch.said()))
    longer = ["scontrol", "update", f"JobId={number}", "TimeLimit=20"]
    subprocess.run(longer, env=launch.env, check=True, capture_output=True)
    assert second.wait(LIMIT) == 0, launch.said()
    assert launch.state().preemptions >= 1, launch.said()
    assert launch.state().failures == 0
    assert len(set(re.findall(r"Slurm job (\d+)", launch.said()))) == 1
    assert_same_bits(undisturbed, launch.workdir)


def test_another_job_of_the_name_is_refused(launch, tmp_path):
    words = ["sbatch", "--job-name=b1", "--hold", "--wrap=true"]
    subprocess.run(words, env=launch.env, check=True, capture_output=True, cwd=tmp_path)
    assert launch.start().wait(LIMIT) == 1
    assert "has this name and is not in" in launch.said()
    assert launch.said().count("\n") == 1


def trainers(workdir: Path) -> list[int]:
    """The process ids of the tasks of a run, by their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:5] == [b"-P", b"-m", b"bert_jax", b"pretrain"]:
            cwd = Path(os.readlink(path.with_name("cwd")))
            if cwd == workdir.parent:
                found.append(int(path.parent.name))
    return sorted(found)
