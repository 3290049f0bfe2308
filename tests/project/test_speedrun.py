"""benchmarks/speedrun.py: its clock, its rows of text, its row of the table, and a tiny run."""

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from page_files import write_text

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import commands
import finetune_learning
import harness
import speedrun

from bert_jax.errors import UserError

REQUEST = {"minutes": 20, "settings": []}
SECONDS = {"vocabulary": 60.0, "store": 90.0, "model": 1050.0}
RECORD = {
    "date": "2026-11-26",
    "commit": "abc1234",
    "processor": "Some CPU, 2 of 4 cores",
    "seconds": SECONDS,
    "request": {"text": "1a2b3c4d"},
}
FOUND = {
    "tokens/s": "2,000",
    "entries": "30,522",
    "loss": "5.000 ± 0.100",
    "words": "30.0% ± 4.0%",
    "documents": "wiki 9, books 8",
    "sst2": 0.75,
    "cola": 0.1,
    "sentences": 0.5,
}
COMMAND = """
import pathlib, signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(42)
signal.signal(signal.SIGTERM, save)
pathlib.Path("started").touch()
time.sleep(60)
"""


def options_of(**changes: Any) -> argparse.Namespace:
    options = {
        "minutes": 20, "config": speedrun.CONFIG, "vocab_size": speedrun.ENTRIES, "seeds": 1,
        "tasks": "sst2,cola,sentences",
    }  # fmt: skip
    return argparse.Namespace(**options | changes)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "page.md"
    path.write_text("| a |\n|---|\n\n")
    monkeypatch.setattr(speedrun, "PAGE", path)
    return path


def test_the_clock_goes_on_where_an_interrupted_stage_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(commands.time, "monotonic", lambda: now[0])

    def fake(words: list[str], _log: Path, each_second: Any) -> None:
        now[0] += 7
        each_second()
        if "killed" in words:
            raise KeyboardInterrupt

    monkeypatch.setattr(commands, "run_command", fake)
    path = tmp_path / "out/clock.json"
    commands.Clock(path, REQUEST).run("store", ["done"], lambda: False)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            commands.Clock(path, REQUEST).run("model", ["killed"], lambda: False)
    clock = commands.Clock(path, REQUEST)
    clock.run("model", ["done"], lambda: False)
    clock.run("store", ["again"], lambda: True)
    assert clock.seconds == {"store": 7, "model": 21}
    assert json.loads(path.read_text())["seconds"] == clock.seconds
    first = json.loads(path.read_text())
    monkeypatch.setattr(commands, "commit", lambda: "another")
    assert commands.Clock(path, REQUEST).record == first


def test_a_folder_of_something_else_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "out/clock.json"
    commands.Clock(path, REQUEST)
    with pytest.raises(UserError, match="has a run of minutes=20, not 60; give another"):
        commands.Clock(path, REQUEST | {"minutes": 60})
    path.write_text("{")
    with pytest.raises(UserError, match=r"clock\.json: damaged"):
        commands.Clock(path, REQUEST)
    with pytest.raises(UserError, match="has files, but no run of this"):
        commands.Clock(tmp_path / "clock.json", REQUEST)


@pytest.mark.processes
def test_a_command_that_is_told_to_end_saves_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bert_jax.py").write_text(COMMAND)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def end() -> None:
        if Path("started").exists():
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        commands.run_command(["pretrain"], tmp_path / "log", end)
    assert "bert-jax pretrain ended with code 42, see " in capsys.readouterr().err
    assert (tmp_path / "log").read_text() == "saved\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_nothing_trains_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def fake(words: list[str], _log: Path, each_second: Any) -> None:
        started.append(words[0])
        each_second()

    monkeypatch.setattr(commands, "run_command", fake)
    clock = commands.Clock(tmp_path / "clock.json", {})
    clock.seconds["model"] = 1200.0
    with pytest.raises(UserError, match="its 20 minutes ended before training began"):
        speedrun.pretrain(options_of(out=tmp_path), [], [], clock)
    assert started == ["data", "data"]


def test_a_row_has_what_was_measured_and_what_differs_from_the_recipe() -> None:
    row = dict(zip(speedrun.COLUMNS, speedrun.row(options_of(), [], RECORD, FOUND), strict=True))
    assert row["vocabulary + store + model, minutes"] == "1.0 + 1.5 + 17.5 = 20.0"
    assert row["commit"] == f"abc1234, tasks {commands.commit()}"
    assert row["text"] == "wiki 9, books 8 documents (1a2b3c4d)"
    assert (row["CoLA, Matthews"], row["mean of tasks"]) == ("0.1000", "0.4500")
    assert row["settings"] == "the recipe"
    changed = options_of(vocab_size=8192, config="mine.py")
    cells = speedrun.row(changed, ["--config.seed=1"], RECORD, {**FOUND, "loss": "a|b"})
    assert cells[-1] == "`--config=mine.py` `--vocab_size=8192` `--config.seed=1`"
    assert speedrun.line(cells).count("|") == len(speedrun.COLUMNS) + 1
    less = {name: value for name, value in FOUND.items() if name != "cola"}
    row = dict(zip(speedrun.COLUMNS, speedrun.row(options_of(), [], RECORD, less), strict=True))
    assert (row["CoLA, Matthews"], row["mean of tasks"]) == ("", "")


def test_a_row_is_appended_once(page: Path) -> None:
    for said in ("appended to ", "is in "):
        assert speedrun.append("| 1 |", []).startswith(said)
        assert page.read_text() == "| a |\n|---|\n| 1 |\n"
    assert "not appended" in speedrun.append("| 2 |", ["why"])
    assert page.read_text() == "| a |\n|---|\n| 1 |\n"


def test_a_run_that_does_not_compare_is_not_appended() -> None:
    assert speedrun.reasons(options_of(), SECONDS) == []
    late = {**SECONDS, "model": 1111.0}
    assert speedrun.reasons(options_of(minutes=21, tasks="sst2"), late) == [
        "the table has runs of 20 and 60 minutes",
        "without cola",
        "without sentences",
    ]
    assert speedrun.reasons(options_of(), late) == ["it took 21.0 minutes"]


def test_the_page_ends_with_the_table() -> None:
    lines = speedrun.PAGE.read_text("utf-8").rstrip().splitlines()
    start = lines.index(speedrun.line(speedrun.COLUMNS))
    assert all(row.count("|") == len(speedrun.COLUMNS) + 1 for row in lines[start:])


def test_the_recipes_warmup_follows_the_minutes() -> None:
    assert speedrun.warmup(options_of(), []) == ["--config.optimizer.warmup_steps=100"]
    assert speedrun.warmup(options_of(), ["--config.optimizer.warmup_steps=9"]) == []
    assert speedrun.warmup(options_of(config="mine.py"), []) == []


def test_a_text_is_known_by_its_content(tmp_path: Path) -> None:
    digests = []
    for folder, content in (("a", "one"), ("b", "one"), ("c", "two")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}.txt").write_text(content)
        sources = [f"lines:{tmp_path / folder}"]
        found, digest = speedrun.find_text(options_of(source=sources, data=None))
        assert found == sources
        digests.append(digest)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("name", ["sst2", "cola"])
def test_a_task_has_the_same_few_rows_whenever_drawn(tmp_path: Path, name: str) -> None:
    header = ["sentence\tlabel"] if name == "sst2" else []
    rows = [f"{i}\u2028\t1\t\tx" for i in range(speedrun.ROWS + 9)]
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.tsv").write_text("\n".join([*header, *rows]) + "\n")
    (data / "dev.tsv").write_text("as it is")
    task = finetune_learning.Task(name, (f"--config.task.data={data}",), ())
    texts = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        made = speedrun.with_fewer_rows(task, folder)
        assert made.train == (f"--config.task.data={folder}",)
        assert (folder / "dev.tsv").read_text() == "as it is"
        texts.append((folder / "train.tsv").read_text())
    assert texts[0] == texts[1]
    drawn = texts[0].split("\n")[:-1]
    assert drawn[: len(header)] == header
    assert len(set(drawn[len(header) :]) & set(rows)) == speedrun.ROWS
    assert len(drawn) == speedrun.ROWS + len(header)
    (data / "train.tsv").write_text("\n".join([*header, *rows[:-10]]) + "\n")
    with pytest.raises(SystemExit):
        speedrun.with_fewer_rows(task, tmp_path / "three")


@pytest.mark.slow
@pytest.mark.processes
def test_a_tiny_run_from_text_to_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path)
    out = tmp_path / "out"
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "sentences").mkdir()
    scored = "".join(f"{i}\t{i % 7 - 3}\tit is text {i % 7}\n" for i in range(4500))
    (tmp_path / "sentences/x_GroundTruth.txt").write_text(scored)
    options = options_of(
        minutes=600, vocab_size=500, seeds=2, out=out, sentences=tmp_path / "sentences",
        data=str(tmp_path), source=None,
    )  # fmt: skip
    settings = [
        "--config.model.hidden_size=32", "--config.model.num_hidden_layers=1",
        "--config.model.intermediate_size=32", "--config.phases[0].batch_size=8",
        "--config.optimizer.warmup_steps=1", "--config.evaluation.batches=1",
        "--config.log_every_steps=5",
    ]  # fmt: skip
    monkeypatch.setattr(speedrun, "RECIPE", (*speedrun.RECIPE, "--config.task.epochs=0.1"))
    run_command, budgets = commands.run_command, []

    def without_budget(words: list[str], *others: Any) -> None:
        """A slow machine needs more than any budget that a test can wait for."""
        budgets.extend(word for word in words if "time_budget" in word)
        kept = [word for word in words if word not in budgets]
        steps = ["--config.phases[0].steps=20"] if len(kept) < len(words) else []
        run_command([*kept, *steps], *others)

    monkeypatch.setattr(commands, "run_command", without_budget)
    sources, digest = speedrun.find_text(options)
    clock = commands.Clock(out / "clock.json", {"text": digest})
    speedrun.pretrain(options, settings, sources, clock)
    taken = dict(clock.seconds)
    speedrun.pretrain(options, settings, sources, clock)
    assert clock.seconds == taken
    left = 60 * options.minutes - taken["vocabulary"] - taken["store"]
    assert budgets == [f"--time_budget={left:.0f}s"]
    assert list(taken) == ["vocabulary", "store", "model"]
    found = speedrun.measure(out)
    task = finetune_learning.find_task(options, "sentences")
    rows = tmp_path / "rows"
    found |= speedrun.fine_tune(options, [speedrun.with_fewer_rows(task, rows)])
    assert len((rows / "sentences_train.tsv").read_text().splitlines()) == 1 + speedrun.ROWS
    row = speedrun.row(options, settings, clock.record, found)
    assert all(row[:9])
    assert row[9:11] == ["", ""]  # of the other tasks
    assert found["entries"] == "500"
    assert harness.processor() in row[3]
