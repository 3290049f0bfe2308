"""A store that changes during a run: one line, exit code 45, no checkpoint from garbage."""

import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from corpus import small_config, small_store
from etils import epath
from runs import complete_steps

from bert_jax import cli, exit_codes
from bert_jax.commands.command import Command
from bert_jax.data_pipeline.plan import cache
from bert_jax.data_pipeline.store import watched_files
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.errors import StorageError
from bert_jax.metrics import run_records
from bert_jax.training.batches import phase_batches
from bert_jax.training.loop import pretrain
from bert_jax.training.progress import RunDisplay


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(200)
        file.write(bytes(100))


def overwrite_in_time(path: Path) -> None:
    """In place; the time of modification is kept."""
    before = path.stat()
    overwrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def replace(path: Path) -> None:
    made = path.with_name("new")
    made.write_bytes(path.read_bytes())
    made.replace(path)


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "overwritten": (overwrite, "was modified;"),
    # By one byte: reading a removed page would kill the test process.
    "overwritten, its time kept": (overwrite_in_time, "was modified;"),
    "cut": (lambda path: os.truncate(path, path.stat().st_size - 1), "bytes, now"),
    "longer": (lengthen, "bytes, now"),
    "removed": (Path.unlink, "was removed"),
    "replaced": (replace, "was modified;"),
}


@pytest.fixture
def store(tmp_path) -> TokenStore:
    return small_store(tmp_path / "store")


@pytest.mark.parametrize(("change", "says"), CHANGES.values(), ids=CHANGES)
def test_no_batch_is_made_of_a_store_that_changed(change, says, store):
    config = small_config(store)
    batches = phase_batches(config, store, store.train, config.phases[0])
    before = batches.batch(0)
    held_out = phase_batches(config, store, store.held_out, config.phases[0])
    change(store.path / "train" / "tokens.npy")
    for make in (batches.batch, batches.evaluation_batch):
        with pytest.raises(StorageError, match=says) as error:
            make(0)
        assert f"{store.path}: changed while it was in use: train/tokens.npy" in str(error.value)
    assert held_out.evaluation_batch(0).keys() == before.keys()  # which has files of its own
    with pytest.raises(StorageError, match=r"train/tokens\.npy"):
        store.files.check()


def chmod(path: Path) -> None:
    path.chmod(0o600)


def back_up(path: Path) -> None:
    path.with_name("backup").hardlink_to(path)


def copy(path: Path) -> None:
    """Another inode, the same content and time of modification."""
    made = path.with_name("new")
    shutil.copy2(path, made)
    made.replace(path)


@pytest.mark.parametrize("change", [chmod, back_up, copy])
def test_another_status_of_a_file_is_compared_once_and_said(
    change, store, caplog, monkeypatch
) -> None:
    config = small_config(store)
    batches = phase_batches(config, store, store.train, config.phases[0])
    expected = batches.batch(1)
    read = hashes(monkeypatch)
    monkeypatch.setattr(logging.getLogger("bert_jax"), "propagate", True)
    with caplog.at_level("INFO", "bert_jax"):
        time.sleep(0.02)  # more than a tick of the kernel's clock
        change(store.path / "train" / "tokens.npy")
        for _ in range(2):
            assert_equal(batches.batch(1), expected)
            store.files.check()
    assert read == ["tokens.npy"]
    (line,) = set(caplog.messages)  # two handlers may collect it
    assert line.startswith(f"{store.path}/train/tokens.npy: its status changed")


def assert_equal(batch: dict, other: dict) -> None:
    for name, values in other.items():
        np.testing.assert_array_equal(batch[name], values)


def hashes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are hashed, as they are."""
    read, hashed = [], watched_files.hashed
    monkeypatch.setattr(
        watched_files, "hashed", lambda path: read.append(path.name) or hashed(path)
    )
    return read


def test_inodes_of_a_file_system_that_invents_them_are_compared_once(store, monkeypatch) -> None:
    inodes, version_of = itertools.count(), watched_files.version_of
    monkeypatch.setattr(
        watched_files, "version_of", lambda path: version_of(path)._replace(inode=next(inodes))
    )
    names, read = ["train/tokens.npy", "tokenizer.json"], hashes(monkeypatch)
    files = {name: store.manifest["files"][name]["sha256"] for name in names}
    watched = watched_files.WatchedFiles(store.path, files)
    for _ in range(3):
        watched.check()
    assert read == ["tokens.npy", "tokenizer.json"]
    overwrite_in_time(store.path / "tokenizer.json")
    with pytest.raises(StorageError, match=r"tokenizer\.json was modified"):
        watched.check()


@pytest.mark.parametrize("file", ["tokenizer.json", "held_out/sentence_lengths.npy"])
def test_every_file_is_looked_at_before_a_checkpoint(file, store):
    store.files.check()
    overwrite(store.path / file)
    with pytest.raises(StorageError, match=file):
        store.files.check()


def test_a_store_that_changes_while_it_is_opened_is_not(store, monkeypatch):
    def check(*_: object) -> None:
        overwrite(store.path / "train" / "tokens.npy")

    monkeypatch.setattr("bert_jax.data_pipeline.store.store.check_split", check)
    with pytest.raises(StorageError, match=r"train/tokens\.npy"):
        open_store(store.path)


def test_a_plan_of_a_store_that_changes_meanwhile_is_not_kept(store, tmp_path, monkeypatch):
    config, made = small_config(store), cache.plan_epoch
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))

    def plan(*arguments: object, **names: object) -> None:
        made(*arguments, **names)
        overwrite(store.path / "train" / "sentence_lengths.npy")

    monkeypatch.setattr(cache, "plan_epoch", plan)
    with pytest.raises(StorageError, match=r"train/sentence_lengths\.npy"):
        phase_batches(config, store, store.train, config.phases[0])
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("step", [5, 12], ids=["between checkpoints", "after the last step"])
def test_a_run_ends_with_a_line_and_keeps_no_garbage(step, store, tmp_path, monkeypatch, capsys):
    advance = RunDisplay.advance

    def advanced(self: RunDisplay, done: int) -> None:
        advance(self, done)
        if done == step:
            overwrite(store.path / "train" / "tokens.npy")

    monkeypatch.setattr(RunDisplay, "advance", advanced)
    config = small_config(store)
    verb = Command(
        "", "", lambda *_: None, lambda *_: pretrain(config, tmp_path / "run"), is_run=True
    )
    monkeypatch.setitem(cli.COMMANDS, "train", verb)
    assert cli.main(["train"]) == exit_codes.STORAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {store.path}: changed while it was in use: train/tokens.npy")
    assert all(saved < step for saved in complete_steps(tmp_path / "run"))
    kinds = {
        record["kind"] for record in run_records.records(epath.Path(tmp_path / "run/metrics.jsonl"))
    }
    assert "finished" not in kinds
    assert "eval" not in kinds or step < 12


PROCESS = """
import os, sys, threading
import numpy as np
from bert_jax.data_pipeline.random.counter_rng import permute
from bert_jax.data_pipeline.store.store import open_store
from bert_jax.data_pipeline.store.watched_files import exit_on_truncated_map
folder, how = sys.argv[1:]
store = open_store(folder)
exit_on_truncated_map(store.path, store.mapped, 45)
tokens = store.train.tokens
if how == "another file":
    tokens = np.memmap(folder + "/other", np.uint64, "w+", shape=100_000)
    os.truncate(folder + "/other", 0)
else:
    os.truncate(tokens.filename, 0)
if how == "compiled":
    indices = np.frombuffer(tokens, np.int64, count=len(tokens) // 4)
    thread = threading.Thread(target=permute, args=(np.uint64(1), indices, 1000))
    thread.start()
    thread.join()
else:
    print(tokens.sum())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the handler is for Linux")
@pytest.mark.parametrize(
    "how",
    [
        "numpy",
        pytest.param("compiled", marks=pytest.mark.slow),
        pytest.param("another file", marks=pytest.mark.slow),
    ],
)
@pytest.mark.processes
def test_a_page_that_was_cut_away_ends_with_a_line(how, tmp_path):
    folder = small_store(tmp_path / "store").path
    command = [sys.executable, "-c", PROCESS, str(folder), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if how == "another file":
        assert (done.returncode, done.stderr) == (-signal.SIGBUS, "")
        return
    assert done.returncode == exit_codes.STORAGE
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {folder}: changed while it was in use: ")
    assert "SIGBUS" in line
