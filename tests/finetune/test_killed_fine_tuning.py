"""Real processes of `bert-jax finetune`: killed at random moments, stopped, and two in one job."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from nightly import others_nightly
from processes import LIMIT, config_file
from runs import complete_steps, read_meta
from small_task import task_config, write_pairs, write_search

from bert_jax import cli
from bert_jax.exit_codes import DONE, STOPPED

KILLS = 3
LAST = 30  # step


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration with dropout, which saves every two steps."""
    folder = tmp_path_factory.mktemp("task")
    dropout = {"model__hidden_dropout_prob": 0.1, "model__attention_probs_dropout_prob": 0.1}
    write_search(write_pairs(folder))
    made = task_config(folder, mesh__data=-1, checkpoint__every_steps=2, **dropout)
    return config_file(made, folder / "config.py")


def words(config: Path, workdir: Path, *flags: str) -> list[str]:
    return ["finetune", f"--config={config}", f"--workdir={workdir}", *flags]


def flags_of(task: str, config: Path, folder: Path) -> list[str]:
    """The flags of a task; that of a teacher is trained before."""
    name, _, taught = task.partition(" from ")
    named = f"--config.task.name={name}"
    if task == "sentence_pairs":  # whose evaluations search, too
        pairs, beir = config.with_name("pairs.tsv"), config.with_name("beir")
        files = [f"--config.task.data={pairs}", f"--config.task.held_out={pairs}"]
        return [named, *files, f"--config.task.retrieval={beir}"]
    if not taught:
        return [named]
    teacher = folder / "teacher/run"
    finished(words(config, teacher, named, "--config.seed=7"), folder / "teacher.txt")
    return [named, f"--config.task.teacher={teacher}"]


def started(command: Sequence[str], output: Path) -> subprocess.Popen:
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("ab") as stream:
        program = [sys.executable, "-m", "bert_jax", *command]
        return subprocess.Popen(program, stdout=stream, stderr=subprocess.STDOUT)


def finished(command: Sequence[str], output: Path) -> None:
    assert started(command, output).wait(LIMIT) == DONE, output.read_text()


def killed(command: Sequence[str], output: Path, workdir: Path, moments: random.Random) -> bool:
    """Whether a kill within three seconds after the next checkpoint reached the process."""
    before, end = complete_steps(workdir), time.monotonic() + LIMIT
    process = started(command, output)
    while process.poll() is None and complete_steps(workdir) == before:
        assert time.monotonic() < end, output.read_text()
        time.sleep(0.05)
    time.sleep(moments.uniform(0, 3))
    process.kill()
    return process.wait() == -signal.SIGKILL


TASKS = ("rte", "multiple_choice", "rte from a teacher", "sentence_pairs")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("task", others_nightly(TASKS, keep=["rte"]))
def test_killed_at_random_moments_it_resumes_to_the_same_bits(
    config: Path, tmp_path: Path, task: str
) -> None:
    whole, other = tmp_path / "whole/run", tmp_path / "killed/run"
    flags = ("--cpu_devices=1", *flags_of(task, config, tmp_path))
    finished(words(config, whole, *flags), tmp_path / "whole.txt")
    command, output = words(config, other, *flags), tmp_path / "killed.txt"
    seed = random.randrange(2**32)
    moments, kills = random.Random(seed), 0
    while kills < KILLS and killed(command, output, other, moments):
        kills += 1
    finished(command, output)
    assert kills, f"seed {seed}"
    assert "resumes from step" in output.read_text(), f"seed {seed}"
    one, two = (read_meta(folder, LAST) for folder in (whole, other))
    assert one["fingerprints"] == two["fingerprints"], f"seed {seed}"
    assert one["evaluation"] == two["evaluation"]
    assert (whole / "results.json").read_bytes() == (other / "results.json").read_bytes()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("task", others_nightly(TASKS, keep=["multiple_choice"]))
def test_two_processes_train_as_one_does(config: Path, tmp_path: Path, task: str) -> None:
    """Equal up to the order of sums, which are over two processes or two devices."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    named = flags_of(task, config, tmp_path)
    flags = (*named, "--cpu_devices=1", f"--coordinator={address}", "--num_processes=2")
    jobs = [
        started(words(config, tmp_path / "two", *flags, f"--process_id={i}"), tmp_path / f"{i}.txt")
        for i in range(2)
    ]
    assert [job.wait(LIMIT) for job in jobs] == [DONE, DONE], (tmp_path / "0.txt").read_text()
    finished(words(config, tmp_path / "one", *named, "--cpu_devices=2"), tmp_path / "one.txt")
    (one,), (two,) = (
        json.loads((tmp_path / name / "results.json").read_text())["runs"]
        for name in ("one", "two")
    )
    assert one["step"] == two["step"] == LAST
    assert one.keys() == two.keys()
    losses = [read_meta(tmp_path / name, LAST)["evaluation"]["loss"] for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.slow
@pytest.mark.processes
def test_a_launched_job_restarts_and_resumes_to_the_same_bits(config: Path, tmp_path: Path) -> None:
    """Two processes under `launch local`; one is killed after a checkpoint."""
    launcher, found = ["launch", "local", "run", "--processes=2"], {}
    for name in ("whole", "killed"):
        workdir, output = tmp_path / name / "run", tmp_path / f"{name}.txt"
        job = started([*launcher, *words(config, workdir, "--cpu_devices=1")], output)
        if name == "killed":
            end = time.monotonic() + LIMIT
            while not complete_steps(workdir):
                assert time.monotonic() < end, output.read_text()
                time.sleep(0.05)
            (pid,) = re.findall(r"host-1 is process (\d+)", output.read_text())
            os.kill(int(pid), signal.SIGKILL)
        assert job.wait(LIMIT) == DONE, output.read_text()
        found[name] = read_meta(workdir, LAST), (workdir / "results.json").read_bytes()
    assert "resumes from step" in output.read_text()
    (one, results), (two, same) = found.values()
    assert one["fingerprints"] == two["fingerprints"]
    assert results == same


@pytest.mark.nightly
@pytest.mark.slow
def test_a_time_limit_ends_the_seeds_and_the_same_command_resumes(
    config: Path, tmp_path: Path
) -> None:
    """The grace period of 25 s leaves a second: the first seed stops before its first step."""
    command = words(config, tmp_path / "run", "--seeds=2")
    assert cli.main([*command, "--time_limit=26s"]) == STOPPED
    assert not (tmp_path / "run/seed-1").exists()
    assert not (tmp_path / "run/results.json").exists()
    assert cli.main(command) == DONE
    found = json.loads((tmp_path / "run/results.json").read_text())
    assert [run["step"] for run in found["runs"]] == [LAST, LAST]
