"""Metrics in Weights & Biases: the same numbers in one run, and no failure that ends training."""

import json
import os
import shutil
import struct
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from corpus import small_config, small_store
from runs import metric_writer, read_records
from tiny_words import TINY

import bert_jax
from bert_jax.metrics.wandb_run import WandbRun

_BLOCK = 2**15  # bytes, of the format of LevelDB's log, in which wandb stores a run


class FakeRun:
    """A run of a `wandb` that fails at one of its functions."""

    def __init__(self, fails: str = ""):
        self.fails, self.calls = fails, []

    def call(self, name: str, /, *values: Any, **settings: Any) -> "FakeRun":
        self.calls.append((name, *values, settings) if settings else (name, *values))
        if name == self.fails:
            raise ConnectionResetError("connection\nlost")
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **settings: self.call(name, *values, **settings)


@pytest.fixture
def fake(monkeypatch) -> FakeRun:
    run = FakeRun()
    monkeypatch.setitem(sys.modules, "wandb", run)
    monkeypatch.setattr("bert_jax.training.loop.check_installed", lambda project: None)
    return run


def lines(capsys) -> list[str]:
    out, err = capsys.readouterr()
    return (out + err).splitlines()


@pytest.mark.parametrize("last", ["finished", "stopped", "lost", "goodput"])
def test_scalars_go_there_and_the_end_says_whether_the_run_failed(last, fake, tmp_path):
    writer = metric_writer(tmp_path)
    writer.wandb = WandbRun("project", "0123", "run", {"seed": 0})
    writer.write("train", 8, 0, {"loss": 2.5, "hosts/slowest": "b"})
    writer.event(last, 8, 0)
    writer.close()
    settings, init, define, log, finish = fake.calls
    assert settings[0] == "Settings"
    assert init[0] == "init"
    assert {"project": "project", "id": "0123", "name": "run", "resume": "allow"}.items() <= init[
        1
    ].items()
    assert define == ("define_metric", "*", {"step_metric": "step"})
    assert log == ("log", {"step": 8, "train/loss": 2.5})
    assert finish == ("finish", {"exit_code": int(last in ("lost", "goodput"))})


@pytest.mark.parametrize("function", ["init", "define_metric", "log", "finish"])
def test_a_failure_is_one_line_and_the_other_metrics_are_written(function, fake, tmp_path, capsys):
    fake.fails = function
    writer = metric_writer(tmp_path)
    writer.wandb = WandbRun("project", "0123", "run", {})
    for step in (1, 2, 3):
        writer.write("train", step, 0, {"loss": 1.0})
    writer.close()
    (line,) = lines(capsys)
    assert line.startswith("warning: Weights & Biases: connection lost; training continues")
    assert [name for name, *_ in fake.calls].count(function) == 1
    assert len(read_records(tmp_path, "train")) == 3


def test_a_missing_package_is_reported_before_the_run_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = bert_jax.config("tiny")
    with pytest.raises(bert_jax.UserError, match=r"pip install 'bert-jax\[wandb\]'"):
        bert_jax.pretrain(config, tmp_path / "run", wandb="project")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_broken_one_does_not_stop_a_run(fake, tmp_path, capsys):
    fake.fails = "log"
    config = small_config(small_store(tmp_path / "store"))
    bert_jax.pretrain(config, tmp_path / "run", wandb="project")
    assert len([line for line in lines(capsys) if "Weights & Biases" in line]) == 1
    assert read_records(tmp_path / "run", "train")[-1]["step"] == config.total_steps


def stored(path: Path) -> Iterator[Any]:
    """The records of a run on the disk, as `wandb sync` reads them."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, record = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := _BLOCK - at % _BLOCK) < 7:
            at += left
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            yield Record.FromString(record)
            record = b""


def run_of(path: Path) -> types.SimpleNamespace:
    """The id, configuration, history and exit code of a run on the disk."""
    found = types.SimpleNamespace(history=[])
    for record in stored(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.about = record.run
            found.config = {u.key: json.loads(u.value_json) for u in record.run.config.update}
        elif kind == "history":
            items = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
            found.history.append({key: json.loads(value) for key, value in items.items()})
        elif kind == "exit":
            found.code = record.exit.exit_code
    return found


@pytest.mark.slow
@pytest.mark.processes
def test_a_resumed_run_is_one_run_with_the_metrics_of_the_first_process(tmp_path):
    """The real package, offline: two processes, then one that repeats the last two steps."""
    pytest.importorskip("wandb")
    store = small_store(tmp_path / "store")
    words = [*TINY, f"--config.data.store={store.path}", "--config.log_every_steps=1"]
    words += [f"--workdir={tmp_path / 'my run'}", "--config.checkpoint.every_steps=2"]
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
    environment |= {"XLA_FLAGS": ""}

    def pretrain(*before: str, devices: int) -> str:
        command = [sys.executable, "-m", "bert_jax", *before, "pretrain", *words]
        command += ["--wandb=my project", f"--cpu_devices={devices}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    pretrain("launch", "local", "run", "--processes=2", devices=1)
    shutil.rmtree(tmp_path / "my run" / "checkpoints" / "4")
    errors = pretrain(devices=2)
    assert "warning" not in errors
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2  # of two starts, and of the first process only
    starts = [run_of(file) for file in files]
    written = json.loads((tmp_path / "my run" / "config.json").read_text())
    for run in starts:
        assert (run.about.run_id, run.about.project) == (written["run_id"], "my project")
        assert run.about.display_name == "my run"
        assert run.config["data"]["store"] == str(store.path)
        assert run.code == 0
    losses = [
        {row["step"]: row["train/loss"] for row in run.history if "train/loss" in row}
        for run in starts
    ]
    written = {r["step"]: r["loss"] for r in read_records(tmp_path / "my run", "train")}
    assert [list(run) for run in losses] == [[1, 2, 3, 4], [3, 4]]
    assert losses[0] | losses[1] == written
