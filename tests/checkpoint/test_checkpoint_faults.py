"""Tests of saving while processes are killed, storage fails, or the state is sharded."""

import gc
import os
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_places import restored
from etils import epath
from runs import complete_steps, list_quarantined, read_meta
from saving_process import STEPS, keeping, over, peers_of, place, state_of

from bert_jax.checkpoint import fingerprint, orbax_io, restore
from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.errors import StorageError
from bert_jax.storage import atomic
from bert_jax.workdir.layout import Workdir

PROGRAM = Path(__file__).parents[1] / "support" / "saving_process.py"
ABSTRACT = over(jax.devices()[:1])[1]


def start(*words: object) -> subprocess.Popen:
    """Starts `saving_process.py`; its output goes to pipes, which the file size limit ignores."""
    command = [sys.executable, str(PROGRAM), *map(str, words)]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen) -> tuple[int, list[str], str]:
    """Returns (exit code, lines, stderr)."""
    try:
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    return process.returncode, out.splitlines(), err


def save(checkpoints: RunCheckpoints, step: int) -> None:
    checkpoints.save(jax.tree.map(jnp.asarray, state_of(step)), {"about": step})


def names(workdir: Path) -> list[str]:
    return sorted(path.name for path in (workdir / "checkpoints").iterdir())


# --- one process of several ----------------------------------------------------------------------


def test_a_checkpoint_that_another_process_cannot_read_is_not_used(tmp_path):
    """All processes restore the same step, so what this one can read does not count alone."""
    checkpoints = RunCheckpoints(Workdir.open(tmp_path), keeping(2))
    for step in (3, 7):
        save(checkpoints, step)
    checkpoints.close()

    def exchange(name: str, text: str) -> list[str]:
        return [text, "its disk is broken" if name == "restore/7/read" else text]

    two = RunCheckpoints(Workdir.open(tmp_path), keeping(2), peers=peers_of(exchange))
    found = two.restore_newest(ABSTRACT)
    assert found is not None
    assert found[1]["step"] == 3
    assert [(q.folder, q.reason) for q in list_quarantined(tmp_path)] == [
        ("7", "its disk is broken")
    ]


def test_the_records_of_a_step_are_written_before_its_checkpoint(tmp_path):
    """A run that resumes from it does not repeat the step."""
    complete: list[list[int]] = []
    checkpoints = RunCheckpoints(
        Workdir.open(tmp_path), keeping(2),
        flush_records=lambda: complete.append(complete_steps(tmp_path)),
    )  # fmt: skip
    for step in (3, 7):
        save(checkpoints, step)
    checkpoints.close()
    assert complete == [[], [3]]


# --- killed ---------------------------------------------------------------------------------------


def kill_somewhere(workdir: Path, moment: int) -> None:
    code, lines, err = ended(start("save", workdir, f"--kill_at={moment}"))
    assert lines == ["saved 3", "saved 7"] + ["saved 12"] * (code == 0), err
    assert code in (0, -9)
    assert restored(workdir) in (7, 12), moment
    assert [one.folder for one in list_quarantined(workdir)] == []
    assert all(name.isdecimal() for name in names(workdir))  # nothing half done is left


@pytest.mark.slow
@pytest.mark.processes
def test_a_kill_while_saving_leaves_the_old_or_the_new(tmp_path):
    # About 110 things are done to files from one save to the end of the next.
    for moment in random.sample(range(1, 110), 2):
        kill_somewhere(tmp_path / f"{moment}", moment)


@pytest.mark.nightly
@pytest.mark.processes
def test_a_kill_at_any_moment_of_saving_leaves_the_old_or_the_new(tmp_path):
    for moment in range(1, 130, 5):
        kill_somewhere(tmp_path / f"{moment}", moment)


def test_what_earlier_processes_left_is_removed_and_nothing_else(tmp_path):
    checkpoints = RunCheckpoints(Workdir.open(tmp_path), keeping(9))
    save(checkpoints, 3)
    checkpoints.close()
    folder = tmp_path / "checkpoints"
    for name in ("7.orbax-checkpoint-tmp", "5.removed", "mine", "mine.removed"):
        (folder / name / "below").mkdir(parents=True)
    RunCheckpoints(Workdir.open(tmp_path), keeping(9))
    assert names(tmp_path) == ["3", "mine", "mine.removed"]


def test_what_a_bucket_holds_of_a_checkpoint_that_was_not_finished_is_removed(
    tmp_path, monkeypatch
):
    """Without rename, a file next to it marks a checkpoint being written or removed."""
    checkpoints = RunCheckpoints(Workdir.open(tmp_path), keeping(9))
    for step in STEPS:
        save(checkpoints, step)
    checkpoints.close()
    folder = tmp_path / "checkpoints"
    for step in STEPS[1:]:
        (folder / f"{step}.unfinished").write_text("")
    (folder / "12" / "commit_success.txt").unlink()
    RunCheckpoints(Workdir.open(tmp_path), keeping(9))
    assert names(tmp_path) == ["3", "7"]
    monkeypatch.setattr(orbax_io, "is_remote", lambda path: True)
    checkpoints = RunCheckpoints(Workdir.open(tmp_path), keeping(1))
    seen = []
    unlink = type(epath.Path(folder)).unlink

    def look(path: epath.Path, **how: object) -> None:
        if "orbax" not in str(path):
            seen.append((path.name, names(tmp_path)))
        unlink(path, **how)

    monkeypatch.setattr(type(epath.Path(folder)), "unlink", look)
    save(checkpoints, 12)
    checkpoints.close()
    assert seen == [
        ("12.unfinished", ["12", "12.unfinished", "3", "7"]),
        ("commit_success.txt", ["12", "3", "3.unfinished", "7"]),
        ("3.unfinished", ["12", "3.unfinished", "7"]),
        ("commit_success.txt", ["12", "7", "7.unfinished"]),
        ("7.unfinished", ["12", "7.unfinished"]),
    ]
    assert names(tmp_path) == ["12"]
    assert restored(tmp_path) == 12


# --- storage that fails ---------------------------------------------------------------------------


@pytest.mark.processes
def test_a_full_disk_ends_the_run_and_loses_nothing(tmp_path):
    """The file size limit of the process is too small for a checkpoint."""
    code, lines, err = ended(start("save", tmp_path, "--limit=300", "--attempts=2"))
    where = tmp_path / "checkpoints" / "12"
    assert code == 45
    assert lines[:2] == ["saved 3", "saved 7"]
    assert lines[2].startswith(f"error: {where}: cannot be written after 2 attempts (")
    assert "the newest checkpoint is step 7; run the same command" in lines[2]
    assert len(lines) == 3
    (warning,) = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert warning.startswith(f"warning: {where}: cannot be written (")
    assert warning.endswith("; attempt 1 of 2, the next in 1 s")
    assert "Traceback" not in err
    assert names(tmp_path) == ["3", "7"]
    assert restored(tmp_path) == 7


@pytest.mark.slow
@pytest.mark.processes
def test_a_disk_that_is_full_for_a_while_is_waited_for(tmp_path):
    code, lines, err = ended(start("save", tmp_path, "--limit=300", "--attempts=6"))
    pauses = [line.rsplit(", the next in ")[-1] for line in err.splitlines() if "next in" in line]
    assert (code, pauses, lines[-1]) == (0, ["1 s", "2 s", "4 s"], "saved 12"), err
    assert restored(tmp_path) == 12
    assert names(tmp_path) == ["12", "7"]


def test_a_part_whose_folder_cannot_be_made_ends_the_save(tmp_path, monkeypatch, capfd):
    """It ends at once, without output of the writer threads; the next save succeeds."""
    items = restore.parts(state_of(3))
    mkdir, ended = type(epath.Path(tmp_path)).mkdir, []

    def refuse(path: epath.Path, **how: object) -> None:
        if "opt" in path.name:
            raise OSError(28, "No space left on device")
        mkdir(path, **how)

    def write() -> None:
        with pytest.raises(OSError, match="No space left") as failed:
            orbax_io.write(epath.Path(tmp_path / "3"), items, {"about": 3})
        ended.append(failed.type)

    with monkeypatch.context() as full:
        full.setattr(type(epath.Path(tmp_path)), "mkdir", refuse)
        thread = threading.Thread(target=write, daemon=True)  # as are those that it starts
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    assert ended == [OSError]
    gc.collect()  # whatever was begun and never ended would complain
    orbax_io.discard(epath.Path(tmp_path / "3"))
    assert not list(tmp_path.iterdir())
    orbax_io.write(epath.Path(tmp_path / "3"), items, {"about": 3})
    found = orbax_io.read_arrays(epath.Path(tmp_path / "3"), items)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(items), strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
    assert capfd.readouterr().err == ""


def test_a_storage_that_loses_a_file_is_no_news_of_orbax(tmp_path, monkeypatch, caplog):
    """The error is raised, to be reported in one line; Orbax does not need this file."""
    mkdir = type(epath.Path(tmp_path)).mkdir

    def lose(path: epath.Path, **how: object) -> None:
        mkdir(path, **how)
        if "opt" in path.name:
            (path.parent / "_CHECKPOINT_METADATA").unlink()

    monkeypatch.setattr(type(epath.Path(tmp_path)), "mkdir", lose)
    orbax_io.write(epath.Path(tmp_path / "3"), restore.parts(state_of(3)), {"about": 3})
    assert [record.getMessage() for record in caplog.records] == []


def test_the_first_that_cannot_be_written_says_that_nothing_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "sync", lambda path: (_ for _ in ()).throw(OSError(5, "broken")))
    checkpoints = RunCheckpoints(Workdir.open(tmp_path), keeping(1))
    save(checkpoints, 3)
    assert checkpoints._thread is not None
    checkpoints._thread.join()
    with pytest.raises(StorageError, match=r"1 attempts \(.*no step was saved before"):
        checkpoints.check()
    checkpoints.close()
    assert names(tmp_path) == []


def test_a_checkpoint_that_cannot_be_removed_is_a_warning(tmp_path, monkeypatch, capsys):
    checkpoints = RunCheckpoints(Workdir.open(tmp_path), keeping(1))
    save(checkpoints, 3)
    checkpoints.wait()

    def fail(folder: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(orbax_io, "remove", fail)
    save(checkpoints, 7)
    checkpoints.close()
    assert complete_steps(tmp_path) == [3, 7]
    assert "3: cannot be removed (Permission denied)" in capsys.readouterr().err


def test_nothing_is_removed_before_the_new_one_is_on_the_disk(tmp_path, monkeypatch):
    """Every file and the folder are flushed first."""
    done = []
    sync, remove = atomic.sync, orbax_io.remove
    monkeypatch.setattr(atomic, "sync", lambda path: (done.append(str(path)), sync(path)))
    monkeypatch.setattr(orbax_io, "remove", lambda path: (done.append("removed"), remove(path)))
    checkpoints = RunCheckpoints(Workdir.open(tmp_path), keeping(1))
    for step in (3, 7):
        save(checkpoints, step)
    checkpoints.close()
    at = done.index("removed")
    there = {str(path) for path in (tmp_path / "checkpoints" / "7").rglob("*")}
    assert there | {str(tmp_path / "checkpoints")} <= set(done[:at])
    assert names(tmp_path) == ["7"]


# --- what is saved --------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [1, 8])
def test_training_goes_on_while_it_is_written(devices, tmp_path):
    """The saved arrays are a copy: later changes of the buffers are not written."""
    placed, abstract = over(jax.devices()[:devices])
    step = jax.jit(
        lambda s: jax.tree.map(lambda x: x if x.dtype == bool else x * 0, s), donate_argnums=0
    )
    checkpoints = RunCheckpoints(Workdir.open(tmp_path), keeping(9))
    checkpoints.prepare(abstract)
    state = place(state_of(3), placed)
    checkpoints.save(state, {})
    jax.block_until_ready(step(state))
    checkpoints.close()
    assert restored(tmp_path) == 3


def test_a_checkpoint_says_what_it_holds(tmp_path):
    checkpoints = RunCheckpoints(Workdir.open(tmp_path), keeping(9))
    save(checkpoints, 3)
    checkpoints.close()
    meta, wanted = read_meta(tmp_path, 3), restore.parts(state_of(3))
    assert meta["fingerprints"] == fingerprint.fingerprints(wanted)
    assert meta["shapes"]["params/head"] == "bfloat16[16]"
    assert meta["about"] == 3  # the run's description: with the versions that wrote it


# --- several processes ----------------------------------------------------------------------------


def on_two(what: str, workdir: Path) -> list[tuple[int, list[str], str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = (what, workdir, "--processes=2", f"--port={port}")
    started = [start(*words, f"--id={i}") for i in range(2)]
    try:
        return [ended(process) for process in started]
    finally:
        for process in started:
            process.kill()


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_save_what_one_restores_and_agree_on_what_is_good(tmp_path):
    """Arrays are sharded over both processes."""
    for code, lines, err in on_two("save", tmp_path):
        assert (code, lines) == (0, [f"saved {step}" for step in STEPS]), err
    assert names(tmp_path) == ["12", "7"]
    assert restored(tmp_path) == 12
    (tmp_path / "checkpoints" / "12" / "commit_success.txt").unlink()
    first, second = on_two("restore", tmp_path)
    for code, lines, err in (first, second):
        assert (code, lines[-1]) == (0, "restored 7"), err
    assert "moved to" in first[2]
    assert "moved to" not in second[2]  # process 0 moves it, and says so
    assert names(tmp_path) == ["7"]
