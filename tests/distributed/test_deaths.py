"""Tests of processes that die, stop, hang or fail: the others exit and report it."""

import dataclasses
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from corpus import small_store
from processes import (
    DEVICES,
    LIMIT,
    Job,
    assert_same_bits,
    config_file,
    newest_step,
)
from runs import complete_steps

from bert_jax.config.schema import Config
from bert_jax.exit_codes import DONE, FAILED, LOST, STORAGE
from bert_jax.workdir.layout import Workdir

pytestmark = pytest.mark.processes

FAULTY = str(Path(__file__).parents[1] / "support" / "faulty_process.py")


@pytest.fixture
def config(disturbed) -> Config:
    return saving(disturbed)


@pytest.fixture
def started(tmp_path) -> Path:
    """Returns the workdir to resume in."""
    return tmp_path / "run"


def saving(config: Config, **deadlines: float) -> Config:
    """Saved after each step."""
    return dataclasses.replace(
        config,
        checkpoint=dataclasses.replace(
            config.checkpoint, every_steps=1, keep=3, keep_best=False, write_attempts=2
        ),
        deadlines=dataclasses.replace(config.deadlines, **{"peer": 15.0, **deadlines}),
    )


def faulty(host: str, place: str, number: int, fault: str) -> tuple[str, ...]:
    """Returns the program of a job in which this fault occurs."""
    return (FAULTY, host, place, str(number), fault)


def goes_on(config: Config, workdir: Path, tmp_path: Path, whole: Path, processes: int = 2) -> None:
    """The same command resumes from the newest complete step and gives the same bits."""
    newest = max(complete_steps(workdir), default=0)
    with Job(config, workdir, tmp_path, processes=processes) as job:
        assert job.codes() == [DONE] * processes
    if newest:
        assert f"resumes from step {newest} in" in job.processes[0].said()
    assert_same_bits(whole, workdir)


def said_by(job: Job, process: int) -> str:
    """Returns the output of a process, in one line."""
    return " ".join(job.processes[process].said().split())


def is_lost(process: int) -> str:
    return f"host-{process} (process {process}) is lost: "


# --- killed ---------------------------------------------------------------------------------------


def kill_at_random(config: Config, workdir: Path, tmp_path: Path, hit: int, count: int) -> None:
    """In the next steps, each of which is saved."""
    goal = newest_step(workdir) + random.randint(1, 4)
    with Job(config, workdir, tmp_path, processes=count) as job:
        job.wait_for(lambda: newest_step(workdir) >= goal, f"step {goal}")
        time.sleep(random.uniform(0, 0.2))
        job.send(signal.SIGKILL, hit)
        codes = job.codes()
        assert codes == [-signal.SIGKILL if process == hit else LOST for process in range(count)]
        for process in set(range(count)) - {hit}:
            assert is_lost(hit) in said_by(job, process)
            assert "Traceback" not in said_by(job, process)


@pytest.mark.nightly
def test_kills_at_random_moments_cost_no_bits(config, undisturbed, started, tmp_path):
    """First process 0, which serves the others, then another; finally one process resumes."""
    kill_at_random(config, started, tmp_path, hit=0, count=2)
    kill_at_random(config, started, tmp_path, hit=1, count=2)
    goes_on(config, started, tmp_path, undisturbed, processes=1)


@pytest.mark.nightly
def test_kills_in_jobs_of_four_and_of_one(config, undisturbed, started, tmp_path):
    kill_at_random(config, started, tmp_path, hit=2, count=4)
    kill_at_random(config, started, tmp_path, hit=0, count=1)
    goes_on(config, started, tmp_path, undisturbed, processes=4)


@pytest.mark.nightly
def test_kills_at_every_kind_of_work(config, undisturbed, started, tmp_path):
    """One after another in one run; each attempt resumes where the previous was killed."""
    for place, number, hit in (
        ("meet JAX", 1, 0),
        ("compile", 1, 1),
        ("data", 5, 0),
        ("save", 3, 1),
        ("write", 2, 0),  # nothing is there yet of the second checkpoint of this attempt
        ("read", 1, 1),
        ("evaluate", 1, 0),
    ):
        program = faulty(f"host-{hit}", place, number, "kill")
        with Job(config, started, tmp_path, processes=2, program=program) as job:
            codes = job.codes()
        assert codes == [-signal.SIGKILL if process == hit else LOST for process in (0, 1)]
        assert f"kill at {place}" in said_by(job, hit)
        assert is_lost(hit) in said_by(job, 1 - hit)
    goes_on(config, started, tmp_path, undisturbed)


# --- stopped --------------------------------------------------------------------------------------


def stop_and_continue(config: Config, workdir: Path, tmp_path: Path, *fault: object) -> None:
    """A process that the others gave up ends as soon as it continues, and writes nothing."""
    host, place, number = fault
    program, hit = faulty(host, place, number, "stop"), int(host[-1])
    with Job(config, workdir, tmp_path, processes=2, program=program) as job:
        job.processes[1 - hit].popen.wait(LIMIT)
        assert job.processes[1 - hit].popen.returncode == LOST
        assert re.search(rf"{re.escape(is_lost(hit))}silent for \d+ s", said_by(job, 1 - hit))
        assert job.processes[hit].popen.poll() is None
        steps, record = complete_steps(workdir), newest_step(workdir)
        job.send(signal.SIGCONT, hit)
        assert job.codes() == [LOST, LOST]
        assert f"host-{hit} (process {hit}) was stopped for" in said_by(job, hit)
    assert complete_steps(workdir) == steps
    assert newest_step(workdir) == record


@pytest.mark.slow
def test_a_stopped_process_is_given_up_and_does_not_go_on(disturbed, started, tmp_path):
    """Suspended where it begins to write a checkpoint."""
    stop_and_continue(saving(disturbed, peer=6.0), started, tmp_path, "host-0", "write", 3)


@pytest.mark.nightly
@pytest.mark.parametrize(("place", "hit"), [("data", 1), ("step", 0), ("evaluate", 1)])
def test_stopped_there(place, hit, disturbed, started, tmp_path):
    stop_and_continue(saving(disturbed, peer=6.0), started, tmp_path, f"host-{hit}", place, 2)


# --- hanging --------------------------------------------------------------------------------------


def hang(config: Config, workdir: Path, tmp_path: Path, *fault: object) -> Job:
    """All exit with 43; the output of the hanging process shows where."""
    host, place, number = fault
    program = faulty(host, place, number, "hang")
    with Job(config, workdir, tmp_path, processes=2, program=program) as job:
        assert job.codes() == [LOST, LOST]
    hit = int(host[-1])
    assert f"hang at {place}" in said_by(job, hit)
    return job


def assert_it_says_where(job: Job, hit: int, activity: str) -> None:
    mine, other = said_by(job, hit), said_by(job, 1 - hit)
    assert f"host-{hit}: stacks of all threads:" in mine
    assert "in sleeps_for_ever" in mine
    line = (
        rf"host-{hit} hangs: \d+ s at '{activity}' after step \d+ \(config.deadlines.{activity}\)"
    )
    assert re.search(rf"ERROR host-{hit} \(process {hit}\): {line}", mine)
    assert re.search(
        rf"ERROR host-{1 - hit} \(process {1 - hit}\): host-{hit} \(process {hit}\): {line}", other
    )


@pytest.mark.slow
def test_a_process_stuck_in_data_loading(disturbed, tmp_path):
    job = hang(saving(disturbed, data=5.0), tmp_path / "run", tmp_path, "host-1", "data", 6)
    assert_it_says_where(job, 1, "data")


@pytest.mark.parametrize(
    ("place", "number", "hit", "activity"),
    [
        pytest.param("compile", 1, 1, "compile", marks=pytest.mark.nightly),
        pytest.param("save", 2, 1, "save", marks=pytest.mark.nightly),
        pytest.param("write", 2, 0, "save", marks=pytest.mark.nightly),
        pytest.param("read", 1, 1, "restore", marks=pytest.mark.nightly),
    ],
)
def test_hanging_there(place, number, hit, activity, disturbed, undisturbed, started, tmp_path):
    if place == "read":
        shutil.copytree(undisturbed, started)
    # The other one waits for it at something else, or has come to it later.
    config = saving(disturbed, **{activity: 20.0 if activity == "compile" else 6.0})
    job = hang(config, started, tmp_path, f"host-{hit}", place, number)
    assert_it_says_where(job, hit, activity)


@pytest.mark.nightly
@pytest.mark.parametrize(("place", "number"), [("step", 3), ("evaluate", 1)])
def test_hanging_where_the_others_wait_at_the_same(place, number, disturbed, started, tmp_path):
    """The others may reach the deadline first, so all print their stacks."""
    job = hang(saving(disturbed, **{place: 8.0}), started, tmp_path, "host-0", place, number)
    for process in (0, 1):
        assert f"host-{process}: stacks of all threads:" in said_by(job, process)
        line = rf"ERROR .*host-\d hangs: \d+ s at '{place}' after step \d \(config.deadlines."
        assert re.search(line, said_by(job, process))
    assert "in sleeps_for_ever" in said_by(job, 0)


@pytest.mark.nightly
def test_a_barrier_says_who_has_not_come(disturbed, started, tmp_path):
    job = hang(saving(disturbed, barrier=8.0), started, tmp_path, "host-1", "exchange", 4)
    line = (
        r"waited 8 s for all processes at '[\w/]+' \(config.deadlines.barrier\); "
        r"arrived: host-0 \(process 0\); missing: host-1 \(process 1\)"
    )
    assert re.search(rf"ERROR host-0 \(process 0\): {line}", said_by(job, 0))
    assert re.search(rf"ERROR host-1 \(process 1\): host-0 \(process 0\): {line}", said_by(job, 1))
    assert "in sleeps_for_ever" in said_by(job, 1)


# --- failing --------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_bug_in_one_process_ends_all(config, started, tmp_path):
    with Job(
        config, started, tmp_path, processes=2, program=faulty("host-1", "step", 3, "bug")
    ) as job:
        assert job.codes() == [FAILED, FAILED]
    assert "Traceback" in said_by(job, 1)
    assert "in has_a_bug" in said_by(job, 1)
    assert "ERROR host-0 (process 0): host-1 (process 1): a bug" in said_by(job, 0)
    assert "Traceback" not in said_by(job, 0)


@pytest.mark.nightly
@pytest.mark.parametrize(("place", "hit"), [("open", 0), ("data", 1), ("evaluate", 0)])
def test_what_one_process_refuses_ends_all_with_its_line(place, hit, config, started, tmp_path):
    program = faulty(f"host-{hit}", place, 2 if place != "open" else 1, "refusal")
    with Job(config, started, tmp_path, processes=2, program=program) as job:
        assert job.codes() == [FAILED, FAILED]
    line = "the machine lacks a licence; buy one"
    assert f"ERROR host-{hit} (process {hit}): {line}" in said_by(job, hit)
    assert f"): host-{hit} (process {hit}): {line}" in said_by(job, 1 - hit)
    assert "Traceback" not in job.said()


@pytest.mark.nightly
def test_stores_that_differ_between_machines(config, started, tmp_path, monkeypatch):
    small_store(tmp_path / "store", documents=30)
    (tmp_path / "elsewhere").mkdir()
    small_store(tmp_path / "elsewhere" / "store", documents=40)
    monkeypatch.chdir(tmp_path)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, store="store"))
    program = faulty("host-1", "open", 1, "elsewhere")
    with Job(config, started, tmp_path, processes=2, program=program) as job:
        assert job.codes() == [FAILED, FAILED]
    for process in (0, 1):
        assert "store differs between machines (by digest)" in said_by(job, process)
    assert "Traceback" not in job.said()


@pytest.mark.nightly
def test_a_workdir_of_another_configuration(config, undisturbed, started, tmp_path):
    """All processes see it, and each reports it once."""
    shutil.copytree(undisturbed, started)
    other = dataclasses.replace(config, seed=config.seed + 1)
    with Job(other, started, tmp_path, processes=2) as job:
        assert job.codes() == [FAILED, FAILED]
    for process in (0, 1):
        assert said_by(job, process).count("cannot resume with another config.seed") == 1
    assert "Traceback" not in job.said()


@pytest.mark.slow
def test_storage_that_fails_ends_all_with_45_and_loses_nothing(
    config, undisturbed, started, tmp_path
):
    with Job(config, started, tmp_path, processes=2) as job:
        job.wait_for(lambda: newest_step(started) >= 3, "step 3")
        Workdir.open(started).checkpoints.rename(started / "away")
        Workdir.open(started).checkpoints.write_text("a file")
        assert job.codes() == [STORAGE, STORAGE]
    assert "cannot be written after 2 attempts" in said_by(job, 0)
    assert "ERROR host-1 (process 1): host-0 (process 0): " in said_by(job, 1)
    assert "Traceback" not in job.said()
    Workdir.open(started).checkpoints.unlink()
    Path(started / "away").rename(Workdir.open(started).checkpoints)
    goes_on(config, started, tmp_path, undisturbed)


@pytest.mark.nightly
def test_a_second_trainer_does_the_first_no_harm(config, undisturbed, started, tmp_path):
    with Job(config, started, tmp_path, processes=2) as first:
        first.wait_for(lambda: newest_step(started) >= 1, "a step")
        # It is held in a step, so that it is still there when the second comes.
        first.send(signal.SIGSTOP, 1)
        with Job(config, started, tmp_path, processes=2) as second:
            assert second.codes() == [FAILED, FAILED]
        first.send(signal.SIGCONT, 1)
        assert first.codes() == [DONE, DONE]
    for process in (0, 1):
        assert "another trainer is running there" in said_by(second, process)
    assert "Traceback" not in second.said()
    assert_same_bits(undisturbed, started)


# --- under the launcher ---------------------------------------------------------------------------


def launched(
    config: Config, workdir: Path, folder: Path, during: Callable[[Callable[[], str]], None], *words
) -> tuple[int, str]:
    """Returns exit code and output of `bert-jax launch local run`; `during` gets partial output."""
    folder.mkdir(exist_ok=True)
    command = [
        *(sys.executable, "-m", "bert_jax", "launch", "local", "run", "--processes=2", *words),
        *("pretrain", f"--config={config_file(config, folder / 'config.py')}"),
        *(f"--workdir={workdir}", f"--cpu_devices={DEVICES // 2}"),
    ]
    output = folder / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
    try:
        during(lambda: output.read_text(errors="replace"))
        return process.wait(LIMIT), output.read_text(errors="replace")
    except BaseException:
        print(output.read_text(errors="replace"))
        raise
    finally:
        process.kill()  # the kernel ends what it started
        process.wait()


def kill_launched(workdir: Path, said: Callable[[], str], attempt: int) -> None:
    """Kills one of the processes of an attempt, counted from 1, after it has trained."""
    end = time.monotonic() + LIMIT
    while said().count("launch | coordinator ") < attempt or newest_step(workdir) < attempt:
        assert time.monotonic() < end, "no step in time"
        time.sleep(0.05)
    goal = newest_step(workdir) + 1
    while newest_step(workdir) < goal:
        assert time.monotonic() < end, "no step in time"
        time.sleep(0.02)
    line = [line for line in said().splitlines() if line.startswith("launch | coordinator ")][-1]
    pids = [int(pid) for pid in re.findall(r"is process (\d+)", line)]
    os.kill(random.choice(pids), signal.SIGKILL)


@pytest.mark.nightly
def test_the_launcher_starts_again_until_the_budget_is_used(config, undisturbed, started, tmp_path):
    def during(said: Callable[[], str]) -> None:
        for attempt in (1, 2):
            kill_launched(started, said, attempt)

    code, said = launched(config, started, tmp_path / "1", during, "--max_failures=1")
    assert code == LOST
    assert said.count("was killed by SIGKILL; host-") == 2
    assert "(0 of 1 failures left)" in said
    assert "not started again: 1 of 1 failures used (--max_failures)" in said
    assert (
        len(re.findall(r"ERROR host-\d \(process \d\): host-\d \(process \d\) is lost: ", said))
        == 2
    )
    code, said = launched(config, started, tmp_path / "2", lambda said: None)
    assert code == DONE
    assert_same_bits(undisturbed, started)
