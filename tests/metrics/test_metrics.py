"""Records of a run: strict JSON that survives a kill; write errors never end a run."""

import json
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from runs import metric_writer, read_records
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c

from bert_jax.metrics import run_records


def no_constant(name: str) -> None:
    pytest.fail(f"{name} is no JSON")


def written(folder: Path) -> list[dict[str, Any]]:
    """Every line, parsed as strict JSON like other programs do."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=no_constant) for line in lines]


def events(folder: Path) -> list[list[Event]]:
    """The events of each TensorBoard file, lengths and checksums checked."""
    found = []
    for file in sorted((folder / "tensorboard").iterdir()):
        data, here = file.read_bytes(), []
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            body, sums = data[12 : 12 + size], (data[8:12], data[12 + size : 16 + size])
            for part, total in zip((data[:8], body), sums, strict=True):
                assert struct.pack("<I", masked_crc32c(part)) == total
            here.append(Event.FromString(body))
            data = data[16 + size :]
        found.append(here)
    return found


def run_process(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_scalars_go_to_both_and_events_to_the_file_alone(tmp_path):
    writer = metric_writer(tmp_path)
    writer.event("start", 4, 0, hosts=["a", "b"], versions={"jax": "1"}, seconds={"step": 1.5})
    writer.write("train", 8, 0, {"loss": 2.5, "hosts/slowest": "b", "hosts/own": [0.1, 0.2]})
    writer.event("finished", 8, 0)
    writer.close()
    start, train, finished = written(tmp_path)
    assert (start["kind"], start["step"], start["hosts"]) == ("start", 4, ["a", "b"])
    assert (start["versions"], start["seconds"]) == ({"jax": "1"}, {"step": 1.5})
    assert (train["kind"], train["step"], train["phase"], train["loss"]) == ("train", 8, 0, 2.5)
    assert (train["hosts/slowest"], train["hosts/own"]) == ("b", [0.1, 0.2])
    assert finished["kind"] == "finished"
    ((version, begin, scalar),) = events(tmp_path)
    assert version.file_version == "brain.Event:2"
    assert (begin.step, begin.session_log.status) == (4, SessionLog.START)  # drops what was lost
    assert scalar.step == 8
    assert [(v.tag, v.simple_value) for v in scalar.summary.value] == [("train/loss", 2.5)]


def test_numbers_that_are_not_finite_are_null_and_nan_when_read(tmp_path):
    writer = metric_writer(tmp_path)
    values = {"loss": float("nan"), "a": np.float32("inf"), "b": jnp.float32(0.5), "c": np.int64(3)}
    writer.write("train", 1, 0, values)
    writer.event("skipped", 0, 0, grad_norm=-np.inf, deep={"list": [float("nan"), 1]})
    writer.close()
    train, skipped = written(tmp_path)
    assert [train[name] for name in values] == [None, None, 0.5, 3]
    assert (skipped["grad_norm"], skipped["deep"]) == (None, {"list": [None, 1]})
    (read,) = read_records(tmp_path, "train")
    assert np.isnan(read["loss"])


def test_curves_have_a_loss_that_is_not_finite_but_no_such_margin(tmp_path):
    writer = metric_writer(tmp_path)
    values = {"loss": float("nan"), "loss_margin": float("nan"), "a/loss_margin": 0.5}
    writer.write("eval", 1, 0, values)
    writer.close()
    tags = {value.tag for event in events(tmp_path)[0] for value in event.summary.value}
    assert tags == {"eval/loss", "eval/a/loss_margin"}
    assert written(tmp_path)[0]["loss_margin"] is None


@pytest.mark.processes
def test_a_killed_process_loses_no_line_and_the_next_one_starts_on_its_own(tmp_path):
    script = (
        "import os, signal, sys\n"
        "from bert_jax.metrics.writer import MetricWriter\n"
        "from bert_jax.workdir.layout import Workdir\n"
        "run = Workdir.open(sys.argv[1])\n"
        "writer = MetricWriter(run.metrics, run.tensorboard)\n"
        "for step in range(50): writer.event('skipped', step, 0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert run_process(script, tmp_path).returncode == -signal.SIGKILL
    assert [record["step"] for record in written(tmp_path)] == list(range(50))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "skipped", "st')  # killed once more, in the middle of a line
    writer = metric_writer(tmp_path)
    writer.event("start", 7, 0)
    writer.close()
    there = list(run_records.records(epath.Path(tmp_path / "metrics.jsonl")))
    assert [(r["kind"], r["step"]) for r in there[49:]] == [("skipped", 49), ("start", 7)]


@pytest.mark.slow
@pytest.mark.processes
def test_a_full_disk_is_one_line_for_each_file_and_what_was_written_stays(tmp_path):
    """A limit on file sizes fails writes like a full disk; then space is free again."""
    script = (
        "import resource, sys\n"
        "from bert_jax.metrics.writer import MetricWriter\n"
        "from bert_jax.workdir.layout import Workdir\n"
        "run = Workdir.open(sys.argv[1])\n"
        "sys.dont_write_bytecode = True\n"  # Python would keep a module's cut-off bytecode
        "writer = MetricWriter(run.metrics, run.tensorboard)\n"
        "_, most = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "def write(first):\n"
        "    for step in range(first, first + 100): writer.write('train', step, 0, {'loss': 0.5})\n"
        "write(0); resource.setrlimit(resource.RLIMIT_FSIZE, (3000, most))\n"
        "write(100); resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))\n"
        "write(200); writer.close()"
    )
    done = run_process(script, tmp_path)
    assert done.returncode == 0
    assert (done.stdout + done.stderr).count("cannot be written (File too large)") == 2
    steps = [
        record["step"] for record in run_records.records(epath.Path(tmp_path / "metrics.jsonl"))
    ]
    assert steps == list(range(300))
    ((_, _, *curve),) = events(tmp_path)
    assert [event.step for event in curve] == list(range(300))


@pytest.mark.parametrize("name", ["metrics.jsonl", "tensorboard"])
def test_what_cannot_be_opened_is_one_line(name, tmp_path, capsys):
    in_the_way = tmp_path / name
    in_the_way.mkdir() if name.endswith("jsonl") else in_the_way.write_text("")
    writer = metric_writer(tmp_path)
    for step in range(3):
        writer.write("train", step, 0, {"loss": 1.0})
    writer.close()
    out, err = capsys.readouterr()
    assert (out + err).count("cannot be written (") == 1
    other = written(tmp_path) if name == "tensorboard" else events(tmp_path)[0][2:]
    assert len(other) == 3


def test_figures_of_a_stretch_that_was_lost_are_left_out_from_the_restart_on(tmp_path):
    writer = metric_writer(tmp_path)
    for step in (10, 20, 30):
        writer.write("train", step, 0, {"loss": 1.0})
    writer.event("start", 10, 0)
    writer.write("train", 20, 0, {"loss": 2.0})
    writer.close()
    there = read_records(tmp_path, "train")
    assert [(record["step"], record["loss"]) for record in there] == [(10, 1.0), (20, 2.0)]
