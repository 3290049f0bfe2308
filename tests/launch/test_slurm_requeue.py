"""Tests of the end of a Slurm job's attempt: requeued within two budgets, never after a stop.

Slurm's programs are small scripts here; tests/launch/test_slurm_cluster.py has a real Slurm.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bert_jax.launch.slurm import requeue as slurm_requeue
from bert_jax.launch.slurm.requeue import State


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    """Ends attempts with exit codes; returns the program's own code, and whether it requeued."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "state").write_text("RUNNING\n")
    (tmp_path / "shown").write_text("JobId=7 JobName=a b Requeue=1 Restarts=0 BatchFlag=1\n")
    for name, body in {
        "squeue": f"cat {tmp_path}/state",
        "scontrol": (
            f'[ "$1" = show ] && cat {tmp_path}/shown && exit\necho "$@" >> {tmp_path}/requeued'
        ),
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    requeued = tmp_path / "requeued"

    def end(
        code: int, *, noted: Sequence[int] = (), preemptions: int = 2, failures: int = 1
    ) -> tuple[int, bool]:
        """noted: the codes of the tasks that have noted one, in the order in which they ended."""
        requeued.unlink(missing_ok=True)
        (tmp_path / "codes").mkdir(exist_ok=True)
        for task, its in enumerate(noted):
            (tmp_path / f"codes/{task}").write_text(str(its))
        ended = slurm_requeue.main([str(tmp_path), str(preemptions), str(failures), str(code)])
        if requeued.exists():
            assert requeued.read_text() == "requeue 7\n"
        return ended, requeued.exists()

    return end


def test_preemptions_and_failures_have_budgets_of_their_own(attempt, tmp_path, capsys):
    assert [attempt(code) for code in (42, 43, 42, 42)] == [
        (42, True),
        (43, True),
        (42, True),
        (42, False),
    ]
    assert State.read(tmp_path) == State("7", preemptions=2, failures=1, end=42)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "launch | job 7 ended with 42; not started again: 2 of 2 preemptions used "
        "(--max_preemptions)"
    )


@pytest.mark.parametrize("code", [137, 134])
def test_a_process_that_a_signal_ended_is_a_failure(attempt, tmp_path, code):
    assert attempt(code) == (43, True)
    assert State.read(tmp_path) == State("7", failures=1)


def test_a_process_that_slurm_asked_to_stop_before_it_could_save_is_a_preemption(attempt, tmp_path):
    assert attempt(143) == (42, True)
    assert State.read(tmp_path) == State("7", preemptions=1)


@pytest.mark.parametrize("code", [0, 1, 2, 44, 45, 127])
def test_a_final_code_ends_the_job(attempt, tmp_path, code):
    assert attempt(code) == (code, False)
    assert State.read(tmp_path) == State("7", end=code)


@pytest.mark.parametrize(("code", "ended"), [(42, 42), (43, 42), (137, 42), (1, 1), (0, 0)])
def test_a_job_that_was_asked_to_stop_is_not_requeued(attempt, tmp_path, code, ended):
    (tmp_path / "stop").touch()
    assert attempt(code) == (ended, False)


def test_a_job_that_slurm_ends_is_not_requeued(attempt, tmp_path):
    (tmp_path / "state").write_text("COMPLETING\n")  # of one cancelled, while its script runs
    assert attempt(42) == (42, False)


@pytest.mark.parametrize("code", [42, 43, 143])
def test_a_job_that_slurm_itself_requeues_has_not_ended(
    attempt, tmp_path, monkeypatch, capsys, code
):
    """A preemption without GraceTime: squeue shows the same as after scancel."""
    (tmp_path / "state").write_text("COMPLETING\n")
    (tmp_path / "shown").write_text("JobId=7 JobName=a b Requeue=1 Restarts=3 BatchFlag=1\n")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    assert attempt(code) == (42, False)
    assert State.read(tmp_path) == State("7", preemptions=1)
    assert "launch | Slurm itself starts job 7 again\n" in capsys.readouterr().out
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")  # it came back, and scancel ends it
    assert attempt(42) == (42, False)
    assert State.read(tmp_path) == State("7", preemptions=1, end=42)


def test_a_job_that_slurm_itself_requeues_too_often_ends_when_it_comes_back(attempt, tmp_path):
    (tmp_path / "state").write_text("COMPLETING\n")
    (tmp_path / "shown").write_text("JobId=7 Restarts=1\n")
    assert attempt(1) == (1, False)
    assert not (tmp_path / "stop").exists()  # it ends with the same error again
    assert attempt(42, preemptions=0) == (42, False)
    assert State.read(tmp_path) == State("7", end=42)
    assert (tmp_path / "stop").exists()  # with which the batch script starts nothing


def test_variables_of_squeue_do_not_hide_that_slurm_ends_the_job(attempt, tmp_path, monkeypatch):
    (tmp_path / "bin/squeue").write_text(
        '#!/bin/sh\n[ "${SQUEUE_PARTITION-}" ] || echo COMPLETING\n'
    )
    monkeypatch.setenv("SQUEUE_PARTITION", "high")
    assert attempt(42) == (42, False)


@pytest.mark.parametrize(
    ("code", "noted", "ended"),
    [
        (43, [1, 43], (1, False)),  # an error that would occur again, and who noticed the end
        (43, [43, 1], (1, False)),
        (43, [42, 43], (42, True)),
        (44, [1, 44], (1, False)),
        (143, [-15, 43], (42, True)),
        (137, [-9, 43], (43, True)),
        (0, [0, 0], (0, False)),
        (137, [0], (43, True)),  # the node of the other task is gone
        (1, [43], (1, False)),
    ],
)
def test_the_codes_of_all_tasks_decide(attempt, monkeypatch, code, noted, ended):
    monkeypatch.setenv("SLURM_NTASKS", "2")
    assert attempt(code, noted=noted) == ended


def test_the_line_about_an_end_names_the_tasks(attempt, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_NTASKS", "2")
    attempt(43, noted=[43, 1])
    assert capsys.readouterr().out == (
        "launch | task 0 ended with 43; task 1 ended with 1; not started again\n"
    )


TASK = (sys.executable, "-P", "-m", "bert_jax.launch.slurm.task")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("program", "noted", "code"),
    [
        ("raise SystemExit(44)", "44", 44),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "-9", 137),
    ],
)
def test_a_task_notes_how_its_process_ended(tmp_path, monkeypatch, program, noted, code):
    monkeypatch.setenv("SLURM_PROCID", "3")
    done = subprocess.run([*TASK, tmp_path, sys.executable, "-c", program])
    assert done.returncode == code
    assert (tmp_path / "3").read_text() == noted


@pytest.mark.processes
def test_a_task_passes_the_request_to_stop_on(tmp_path, monkeypatch):
    """Slurm sends it to the first process of a task only, where it tracks processes by cgroups."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    program = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(42)); "
        "print('ready', flush=True); time.sleep(60)"
    )
    words = [*TASK, tmp_path, sys.executable, "-c", program]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as task:
        assert task.stdout.readline() == "ready\n"
        task.terminate()
        assert task.wait(30) == 42
    assert (tmp_path / "0").read_text() == "42"


def test_another_job_has_budgets_of_its_own(attempt, tmp_path):
    State("6", preemptions=2, failures=1, end=42).write(tmp_path)
    assert attempt(42) == (42, True)
    assert json.loads((tmp_path / "state.json").read_text()) == {
        "job": "7", "preemptions": 1, "failures": 0, "end": None,
    }  # fmt: skip


def test_budgets_may_have_no_limit(attempt, tmp_path: Path):
    for _ in range(5):
        assert attempt(43, failures=-1) == (43, True)


def test_a_requeue_that_slurm_refuses_ends_the_job(attempt, tmp_path, capsys):
    (tmp_path / "bin/scontrol").write_text("#!/bin/sh\necho 'Requeue is disabled' >&2\nexit 1\n")
    assert attempt(42) == (42, False)
    assert State.read(tmp_path) == State("7", preemptions=1, end=42)
    assert "launch | not requeued: Requeue is disabled" in capsys.readouterr().out
