"""Tests of the workdir lock with real processes: it never outlives its trainer."""

import dataclasses
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.workdir import lock
from bert_jax.workdir.layout import Workdir
from bert_jax.workdir.lock import is_locked
from bert_jax.workdir.lock import lock as held

WAIT = 60  # seconds; only ever waited out by a broken test

# Holds the lock and says so; with "child" as its second word it leaves a process of its own behind:
# one of another program ("exec") or a copy of itself ("fork"), and says its number.
HOLDER = """
import os, subprocess, sys, time
from bert_jax.workdir.lock import lock as held

with held(sys.argv[1]):
    child = 0
    if "exec" in sys.argv:
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        child = subprocess.Popen(command, close_fds=False).pid
    if "fork" in sys.argv:
        child = os.fork()
        if child == 0:
            os.write(1, b"forked\\n")
            time.sleep(600)
    os.write(1, f"{child}\\n".encode())  # at once, or the two lines might mix
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails fast instead of waiting for a process that may be dying."""
    monkeypatch.setattr(lock, "_POLICY", dataclasses.replace(lock._POLICY, attempts=2))


@contextmanager
def holder(workdir: Path, *how: str) -> Iterator[tuple[subprocess.Popen, int]]:
    """Starts a process that holds the lock until told to end; yields it and its child, if any."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(Workdir.open(workdir).lock), *how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "BERT_JAX_HOST_NAME": "host-a"},
    )
    child = 0
    try:
        lines = [process.stdout.readline().strip() for _ in range(2 if "fork" in how else 1)]
        child = int(next(line for line in lines if line.isdigit()))
        yield process, child
    finally:
        process.kill()
        process.wait(WAIT)
        process.stdin.close()
        process.stdout.close()
        if child:
            os.kill(child, signal.SIGKILL)


@pytest.mark.processes
def test_a_second_trainer_is_told_who_is_at_work(tmp_path: Path) -> None:
    with holder(tmp_path / "run") as (process, _):
        assert is_locked(Workdir.open(tmp_path / "run").lock)
        with pytest.raises(UserError) as error, held(Workdir.open(tmp_path / "run").lock):
            pytest.fail("two hold one lock")
        message = str(error.value)
        assert "\n" not in message
        assert f"{tmp_path}/run: another trainer is running there" in message
        assert f"(process {process.pid} on host-a since 2" in message
        process.communicate("end\n", timeout=WAIT)
        assert process.returncode == 0
    assert is_locked(Workdir.open(tmp_path / "run").lock) is False
    with held(Workdir.open(tmp_path / "run").lock):
        assert is_locked(Workdir.open(tmp_path / "run").lock)
        about = json.loads((tmp_path / "run" / ".lock").read_text())
        assert about["pid"] == os.getpid()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.processes
def test_a_process_that_dies_leaves_no_lock(number: int, tmp_path: Path) -> None:
    with holder(tmp_path) as (process, _):
        process.send_signal(number)
        assert process.wait(WAIT) == -number
        with held(Workdir.open(tmp_path).lock):
            assert is_locked(Workdir.open(tmp_path).lock)


@pytest.mark.parametrize("how", ["exec", "fork"])
@pytest.mark.processes
def test_a_child_that_outlives_its_trainer_does_not_hold_the_lock(how: str, tmp_path: Path) -> None:
    with holder(tmp_path, how) as (process, child):
        process.kill()
        process.wait(WAIT)
        os.kill(child, 0)  # it lives
        assert is_locked(Workdir.open(tmp_path).lock) is False
        with held(Workdir.open(tmp_path).lock):
            pass


def test_a_child_that_ends_does_not_unlock(tmp_path: Path) -> None:
    with held(Workdir.open(tmp_path).lock):
        child = os.posix_spawn("/bin/true", ["true"], {})
        os.waitpid(child, 0)
        assert is_locked(Workdir.open(tmp_path).lock)
    assert not is_locked(Workdir.open(tmp_path).lock)


def test_a_workdir_that_is_not_there_is_not_held(tmp_path: Path) -> None:
    assert is_locked(Workdir.open(tmp_path / "none").lock) is False
    (tmp_path / "file").write_text("")
    assert is_locked(Workdir.open(tmp_path / "file").lock) is False
    with held(Workdir.open(tmp_path / "new" / "run").lock):
        assert is_locked(Workdir.open(tmp_path / "new" / "run").lock)


def test_a_bucket_is_not_locked() -> None:
    with held(Workdir.open("gs://bucket/run").lock):
        assert is_locked(Workdir.open("gs://bucket/run").lock) is None


def test_where_locks_do_not_work_a_run_goes_on(tmp_path: Path, monkeypatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        with held(Workdir.open(tmp_path).lock):
            assert is_locked(Workdir.open(tmp_path).lock) is None
    (tmp_path / "file").write_text("")
    with held(
        Workdir.open(tmp_path / "file").lock
    ):  # cannot be a folder: what writes there will say so
        pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_old_or_foreign_text_in_the_file_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(b"\xff[" * 9000)
    assert is_locked(Workdir.open(tmp_path).lock) is False
    with held(Workdir.open(tmp_path).lock):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
        (tmp_path / ".lock").write_bytes(b"[]")
        with pytest.raises(UserError, match="process unknown"), held(Workdir.open(tmp_path).lock):
            pass
