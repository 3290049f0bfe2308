"""benchmarks/speedrun.py: its clock, its text, its row of the table, and a tiny run."""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from page_files import write_text

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import commands
import harness
import speedrun
import task_runs

from bert_jax.errors import UserError

REQUEST = {"minutes": 20, "settings": []}
SECONDS = {"vocabulary": 60.0, "store": 90.0, "model": 1050.0}
RECORD = {
    "date": "2026-11-26",
    "commit": "abc1234",
    "tasks": {"sst2": "abc1234", "cola": "abc1234", "sentences": "abc1234"},
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
RECIPE = """
from bert_jax.configs import glue_small
def get_config():
    config = glue_small.get_config()
    config.task.fewest_steps, config.task.most_steps = 0, 10
    return config
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
        commands.run_command(["pretrain"], tmp_path / "log", each_second=end)
    assert "bert-jax pretrain ended with code 42, see " in capsys.readouterr().err
    assert (tmp_path / "log").read_text() == "saved\n"
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.processes
@pytest.mark.parametrize("at_once", [1, 2])
def test_commands_at_once_have_a_core_each_and_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    (tmp_path / "bert_jax.py").write_text(
        "import os; print(os.environ['ADDED'], len(os.sched_getaffinity(0)))"
    )
    monkeypatch.chdir(tmp_path)
    mine = len(os.sched_getaffinity(0))

    def work(name: str) -> str:
        commands.run_command([name], tmp_path / name, {"ADDED": f"for {name}"})
        return (tmp_path / name).read_text()

    found = list(commands.run_each(work, ["a", "b", "c"], at_once))
    cores = mine if at_once == 1 else 1
    assert found == [f"for {name} {cores}\n" for name in "abc"]
    assert len(os.sched_getaffinity(0)) == mine


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
    assert row["commit"] == "abc1234"
    assert row["text"] == "wiki 9, books 8 documents (1a2b3c4d)"
    assert (row["CoLA, Matthews"], row["mean of tasks"]) == ("0.1000", "0.4500")
    assert row["settings"] == "the recipe"
    changed = options_of(vocab_size=8192, config="mine.py")
    cells = speedrun.row(changed, ["--config.seed=1"], RECORD, {**FOUND, "loss": "a|b"})
    later = speedrun.row(
        changed, [], {**RECORD, "tasks": RECORD["tasks"] | {"cola": "def5678"}}, FOUND
    )
    assert dict(zip(speedrun.COLUMNS, later, strict=True))["commit"] == "abc1234, tasks def5678"
    assert cells[-1] == "`--config=mine.py` `--vocab_size=8192` `--config.seed=1`"
    assert task_runs.table([cells]).count("|") == len(speedrun.COLUMNS) + 1
    less = {name: value for name, value in FOUND.items() if name != "cola"}
    row = dict(zip(speedrun.COLUMNS, speedrun.row(options_of(), [], RECORD, less), strict=True))
    assert (row["CoLA, Matthews"], row["mean of tasks"]) == ("", "")


def test_a_new_file_is_a_change_but_not_one_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)

    (tmp_path / "kept.py").touch()
    git("init", "-q")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "kept")
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/log").touch()
    assert not commands.commit(tmp_path / "run").endswith("and changes")
    (tmp_path / "mine.py").touch()
    assert commands.commit(tmp_path / "run").endswith("and changes")


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


@pytest.mark.parametrize(
    ("config", "settings", "says"),
    [
        ("continue_domain", [], "--config=continue_domain: sets init"),
        (speedrun.CONFIG, ["--config.teacher=run@1"], "--config.teacher: the run starts from text"),
    ],
)
def test_weights_of_another_model_are_refused(
    config: str, settings: list[str], says: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit):
        speedrun.check(options_of(config=config), settings)
    assert says in capsys.readouterr().err


def test_the_page_ends_with_the_table() -> None:
    lines = speedrun.PAGE.read_text("utf-8").rstrip().splitlines()
    start = lines.index(task_runs.table([speedrun.COLUMNS]))
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


@pytest.mark.parametrize("rows", [speedrun.ROWS, speedrun.ROWS + 9])
def test_a_task_has_the_same_few_rows_for_all(tmp_path: Path, rows: int) -> None:
    folder = tmp_path / "glue/SST-2"
    folder.mkdir(parents=True)
    (folder / "dev.tsv").write_text("sentence\tlabel\nas it is\t1\n")
    texts = [f"{i}\u2028\t{i % 2}" for i in range(rows)]
    (folder / "train.tsv").write_text("\n".join(["sentence\tlabel", *texts, ""]))
    drawn = []
    for out in (tmp_path / "one", tmp_path / "two"):
        task = speedrun.find_task(options_of(data=str(tmp_path), out=out, seeds=2), "sst2")
        _, _, train, held_out = task.read()
        assert [example.texts for example in held_out.examples] == [("as it is",)]
        drawn.append([example.texts[0] for example in train.examples])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == len(drawn[0]) == speedrun.ROWS


def test_a_task_of_too_few_rows_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scored = "".join(f"{i}\t1\ttext\n" for i in range(speedrun.ROWS))
    (tmp_path / "x_GroundTruth.txt").write_text(scored)
    with pytest.raises(SystemExit):
        speedrun.find_task(options_of(data="", out=tmp_path, sentences=tmp_path), "sentences")
    assert capsys.readouterr().err == "error: sentences has fewer than 4,000 rows\n"


@pytest.mark.nightly
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
    recipe = tmp_path / "recipe.py"
    recipe.write_text(RECIPE)
    monkeypatch.setattr(speedrun, "RECIPE", str(recipe))
    run_command, budgets = commands.run_command, []

    def without_budget(words: list[str], log: Path, **others: Any) -> None:
        """A slow machine needs more than any budget that a test can wait for."""
        budgets.extend(word for word in words if "time_budget" in word)
        kept = [word for word in words if word not in budgets]
        steps = ["--config.phases[0].steps=20"] if len(kept) < len(words) else []
        run_command([*kept, *steps], log, **others)

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
    tasks = [speedrun.find_task(options, "sentences")]
    found |= speedrun.fine_tune(options, tasks)
    monkeypatch.setattr(task_runs, "run_command", None)
    assert speedrun.fine_tune(options, tasks)["sentences"] == found["sentences"]
    row = speedrun.row(options, settings, clock.record, found)
    assert all(row[:9])
    assert row[9:11] == ["", ""]  # of the other tasks
    assert found["entries"] == "500"
    assert harness.processor() in row[3]
