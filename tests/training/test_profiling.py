"""`--profile=FIRST:END`: the steps that are traced, and what opens the trace."""

import gzip
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from bert_jax.errors import UsageError, UserError
from bert_jax.training.profiling import Profiler, Steps
from bert_jax.workdir.layout import Workdir

matmul = jax.jit(lambda x: x @ x / 64)


def train(profiler: Profiler, first: int, end: int) -> None:
    x = jnp.ones((64, 64))
    for step in range(first, end):
        x = profiler.run(step, matmul, x)
    assert float(x[0, 0]) == 1.0
    profiler.close(end)


def traces(workdir: Path) -> list[Path]:
    return sorted((workdir / "profile" / "plugins" / "profile").glob("*/*"))


def steps_marked(workdir: Path) -> list[int]:
    """The steps that the trace for Perfetto names."""
    (file,) = (path for path in traces(workdir) if path.name == "perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    marks = [event for event in events if event.get("name") == "train"]
    assert all(event["ph"] == "X" and event["dur"] > 0 for event in marks)
    return sorted(int(event["args"]["step_num"]) for event in marks)


@pytest.mark.parametrize(
    "text", ["5", "9:3", "3:3", ":4", "a:b", "1:2:3", "-1:3", "", "1 : 2", "١:٩"]
)
def test_what_is_no_range_of_steps_is_one_line(text):
    with pytest.raises(UsageError, match=r"give FIRST:END, .* 10:13 traces") as error:
        Steps.parse(text)
    assert f"--profile={text}: " in str(error.value)
    assert "\n" not in str(error.value)


def test_steps_beyond_the_run_are_refused():
    Steps.parse("3:5").check(5)
    with pytest.raises(
        UserError, match=r"^--profile=3:6: this run has steps 0 to 4; give an END of at most 5"
    ):
        Steps.parse("3:6").check(5)


@pytest.mark.slow
def test_the_trace_has_the_steps_asked_for_and_no_others(tmp_path, capsys):
    train(Profiler(Workdir.open(tmp_path).profile, Steps(2, 5)), 0, 8)
    assert steps_marked(tmp_path) == [2, 3, 4]
    (tensorboard,) = (path for path in traces(tmp_path) if path.name.endswith(".xplane.pb"))
    content = tensorboard.read_bytes()
    assert b"step_num" in content
    assert b"/host:CPU" in content
    assert "traced steps 2 to 4: " in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_goes_on_or_ends_within_them_traces_its_own(tmp_path):
    train(Profiler(Workdir.open(tmp_path / "on").profile, Steps(2, 5)), 3, 8)
    assert steps_marked(tmp_path / "on") == [3, 4]
    train(Profiler(Workdir.open(tmp_path / "stopped").profile, Steps(2, 9)), 0, 4)
    assert steps_marked(tmp_path / "stopped") == [2, 3]


def test_without_the_flag_or_behind_the_steps_nothing_is_written(tmp_path):
    train(Profiler(Workdir.open(tmp_path).profile, None), 0, 4)
    train(Profiler(Workdir.open(tmp_path).profile, Steps(0, 4)), 5, 7)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_trace_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / "profile").write_text("in the way")
    train(Profiler(Workdir.open(tmp_path).profile, Steps(0, 2)), 0, 4)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {tmp_path / 'profile'}: no trace (")
    assert line.endswith("training continues")
    # The profiler is free again.
    train(Profiler(Workdir.open(tmp_path / "next").profile, Steps(0, 2)), 0, 4)
    assert steps_marked(tmp_path / "next") == [0, 1]


def test_a_trace_that_cannot_be_begun_is_one_line(tmp_path, capsys):
    with jax.profiler.trace(str(tmp_path / "other")):
        train(Profiler(Workdir.open(tmp_path).profile, Steps(0, 2)), 0, 4)
    assert "no trace (Profile has already been started." in capsys.readouterr().err


class Bucket(type(Path())):
    """A folder that gives itself out as one of a bucket, which no profiler can write to."""

    def __str__(self) -> str:
        return "gs://" + os.fspath(self).lstrip("/")

    def __fspath__(self) -> str:
        return super().__str__()


def test_a_trace_goes_to_a_bucket_by_way_of_a_local_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(Profiler(Bucket(tmp_path / "bucket" / "profile"), Steps(1, 3)), 0, 4)
    assert steps_marked(tmp_path / "bucket") == [1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["bucket"]  # no folder called gs:
