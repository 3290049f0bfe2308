"""benchmarks/task_runs.py and what compares its runs; nothing is trained."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from small_task import DEV, TRAIN, write_task

from bert_jax.checkpoint import catalog
from bert_jax.config.config_files import load
from bert_jax.configs.ablations import RANDOM_WORDS
from bert_jax.training.word_start import is_counted

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(FOLDER))

import finetune_recipe  # noqa: E402
import label_efficiency  # noqa: E402
import task_runs  # noqa: E402

TEXTS = [
    tuple(text.split())
    for text in (
        "a b c d e f",  # 0: has 1 in it
        "c d e",  # 1: in 0 and in 2, which do not have each other
        "x c d e y",  # 2
        "c d z",  # 3: shares two words only
        "c d",  # 4: short, in all above
        "z",  # 5
        "p q r s",  # 6: the same as 7
        "p q r s",  # 7
        "a c d e",  # 8: has 1 in it
        "a b d",  # 9: its words are in 0, but not in a row
    )
]


def holds(words: tuple[str, ...], phrase: tuple[str, ...]) -> bool:
    return any(words[i : i + len(phrase)] == phrase for i in range(len(words)))


def test_rows_that_hold_one_another_are_one_group_by_chains_too() -> None:
    assert finetune_recipe.group(TEXTS).tolist() == [0, 0, 0, 3, 4, 5, 6, 6, 0, 9]


@pytest.mark.parametrize("seed", range(20))
def test_no_row_is_trained_on_that_a_scored_one_holds_or_is_in(seed: int) -> None:
    draw = np.random.default_rng(seed)
    texts = [tuple(draw.choice(list("abcd"), draw.integers(1, 9)).tolist()) for _ in range(60)]
    texts += TEXTS
    groups = finetune_recipe.group(texts)
    count = (len({int(g) for g, words in zip(groups, texts, strict=True) if len(words) > 2})) // 2
    train, scored = finetune_recipe.split(texts, groups, count, seed)
    assert len(scored) == count == len({int(groups[row]) for row in scored})
    assert len(set(train)) == len(train) > 0
    assert not {int(groups[row]) for row in train} & {int(groups[row]) for row in scored}
    for one in scored:
        assert len(texts[one]) > 2
        for other in train:
            assert not holds(texts[one], texts[other])
            assert not holds(texts[other], texts[one])
    assert finetune_recipe.split(texts, groups, count, seed) == (train, scored)


def test_more_groups_than_there_are_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        finetune_recipe.split(TEXTS, finetune_recipe.group(TEXTS), 4, 0)
    said = "error: --groups=4: there are 4, and some are to be trained on\n"
    assert capsys.readouterr().err == said


def test_few_rows_are_the_first_of_many(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "all")
    title, *lines = (folder / "train.tsv").read_text().splitlines()
    drawn = {}
    for rows, seed in ((5, 0), (20, 0), (TRAIN, 0), (20, 1)):
        own = tmp_path / f"{rows}-{seed}"
        task = task_runs.draw_glue("rte", folder, own, rows, seed)
        assert task is not None
        first, *drawn[rows, seed] = (own / "train.tsv").read_text().splitlines()
        assert first == title
        _, _, train, held_out = task.read()
        assert (len(train.examples), len(held_out.examples)) == (rows, DEV)
    assert drawn[20, 0][:5] == drawn[5, 0]
    assert drawn[20, 0] != drawn[20, 1]
    assert sorted(drawn[TRAIN, 0]) == sorted(lines) != drawn[TRAIN, 0]
    assert task_runs.draw_glue("rte", folder, tmp_path / "more", TRAIN + 1, 0) is None


def test_rows_without_a_title_are_drawn_too(tmp_path: Path) -> None:
    folder = tmp_path / "CoLA"
    folder.mkdir()
    for name in ("train", "dev"):
        rows = [f"s\t{i % 2}\t\tword{i} {name}\n" for i in range(9)]
        (folder / f"{name}.tsv").write_text("".join(rows))
    task = task_runs.draw_glue("cola", folder, tmp_path / "own", 9, 0)
    assert task is not None
    texts = {example.texts for example in task.read()[2].examples}
    assert texts == {(f"word{i} train",) for i in range(9)}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would have been run: the pretrained model is right on all but one example."""
    run: list[list[str]] = []

    def take(words: list[str], log: Path, _environment: object) -> None:
        run.append(words)
        log.parent.mkdir(parents=True, exist_ok=True)
        flags = dict(word[2:].split("=", 1) for word in words[1:] if "=" in word)
        if words[0] == "finetune":
            value = 0.9 if "pretrained" in flags["workdir"] else 0.5
            (Path(flags["workdir"])).mkdir()
            results = {"metrics": ["accuracy"], "runs": [{"accuracy": value}]}
            (Path(flags["workdir"]) / "results.json").write_text(json.dumps(results))
            log.write_text("rows (97.25% real, at most 98% possible)\n")
            return
        task = task_runs.glue_task("rte", Path(flags["input"]))
        labels = [example.label for example in task.read()[3].examples]
        wrong = 1 if "pretrained" in flags["model"] else DEV // 2
        found = [1 - label if i < wrong else label for i, label in enumerate(labels)]
        names = ["index\tprediction", *(f"{i}\t{NAMES[x]}" for i, x in enumerate(found))]
        Path(flags["out"]).write_text("\n".join(names) + "\n")

    monkeypatch.setattr(task_runs, "run_command", take)
    monkeypatch.setattr(task_runs, "random_weights", lambda source: ("--config.model.x=1",))
    return run


def test_random_weights_of_a_counted_model_count_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A fine-tuning has no store to count in; the rest of the model's start stays."""
    counted = load("wiki_books_small").model
    monkeypatch.setattr("bert_jax.training.resolve.find_architecture", lambda source: counted)
    flags = dict(
        word.removeprefix("--config.").split("=", 1)
        for word in task_runs.random_weights(str(tmp_path))
    )
    assert (flags["model.hidden_size"], flags["model.initializer"]) == ("256", "positional_heads")
    assert {key: flags[key] for key in RANDOM_WORDS} == {k: str(v) for k, v in RANDOM_WORDS.items()}
    assert not is_counted(load("wiki_books_small").replace(RANDOM_WORDS).model)


CHANGED = """
made = get_config()
made.optimizer.learning_rate = 1e-3
get_config = lambda: made
"""
NAMES = ("entailment", "not_entailment")


def test_a_curve_is_measured_once_and_drawn(
    commands: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(task_runs, "RESAMPLES", 100)
    data, out = tmp_path / "data", tmp_path / "out"
    write_task(data / "glue" / "RTE")
    options = [
        "--pretrained=run", "--counted=run@0", "--other=x/run 2@5", f"--data={data}",
        f"--out={out}", "--tasks=rte", "--rows=10,50,1000", "--others_at=50", "--seeds=2",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["label_efficiency.py", *options])
    label_efficiency.main()
    tuned = [words for words in commands if words[0] == "finetune"]
    assert len(tuned) == 2 * (2 + 4)
    assert sum("--config.init=" + str(Path.cwd() / "run@0") in words for words in tuned) == 2
    said = capsys.readouterr().out
    assert "# rte has fewer than 1000 rows" in said
    table = (out / "rte.md").read_text()
    assert table in said
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n")[1:-3]]
    found = {(rows, start): cells for rows, start, *cells in rows[2:-1]}
    assert found["10", "pretrained"] == ["0.9000", "0.9000", "0.9000", ""]
    assert found["50", "counted only"][:3] == ["0.5000"] * 3
    assert found["50", "other: run 2@5"][:3] == ["0.5000"] * 3
    assert "excludes 0" in found["50", "random weights"][3]
    assert {start for count, start in found if count == "10"} == {
        "pretrained", "random weights", "majority", "bag of words",
    }  # fmt: skip
    assert f"{DEV} held-out examples; 97.25% of positions are real" in table
    assert (out / "rte.svg").read_text().startswith("<svg")
    assert all(re.fullmatch(r"[\w.-]+", path.name) for path in (out / "runs").iterdir())
    assert not [path for path in (out / "runs").iterdir() if path.is_dir()]
    commands.clear()
    label_efficiency.main()
    assert commands == []
    changed = tmp_path / "recipe.py"
    changed.write_text("from bert_jax.configs.glue_small import get_config\n")
    monkeypatch.setattr(sys, "argv", [*sys.argv, f"--config={changed}"])
    label_efficiency.main()
    assert commands == []  # the same values in another file
    changed.write_text(changed.read_text() + CHANGED)
    label_efficiency.main()
    assert len(commands) == 2 * len(tuned)


def test_a_run_is_the_same_from_another_folder_and_another_with_other_files(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    write_task(here / "RTE")
    for step in (5, 10):
        (here / "run" / "checkpoints" / str(step)).mkdir(parents=True)
        (here / "run" / "checkpoints" / str(step) / catalog.MARKER).write_text(f"{step}")
    (here / "store").mkdir()
    (here / "store" / "manifest.json").write_text("{}")
    (here / "recipe.py").write_text("from bert_jax.configs.glue_small import get_config\n")
    shutil.copytree(here, elsewhere)

    def digest(folder: Path, step: int = 5) -> str:
        task = task_runs.Task("rte", {"data": folder / "RTE", "pairs": folder / "store"}, ())
        flags = (f"--config.init={folder}/run@{step}", "--config.seed=0")
        return task_runs.Job("name", str(folder / "recipe.py"), task, flags).digest

    first = digest(here)
    (here / "run" / "metrics.jsonl").touch()  # of the run, not of the model
    (here / "store" / "shard").touch()  # which the manifest describes
    assert digest(here) == digest(elsewhere) == first != digest(here, step=10)
    train = here / "RTE" / "train.tsv"
    train.write_text(train.read_text() + "1\ta\tb\tentailment\n")
    task_runs.content_digest.cache_clear()
    assert digest(here) != first


def test_more_runs_at_once_than_cores_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        list(task_runs.run_all([], tmp_path, 100_000))
    assert "error: --at_once=100000: there are " in capsys.readouterr().err


def test_a_run_that_is_trained_further_is_another_model(tmp_path: Path) -> None:
    for step in (5, 10):
        folder = tmp_path / "run" / "checkpoints" / str(step)
        folder.mkdir(parents=True)
        (folder / catalog.MARKER).touch()
        assert task_runs.absolute(f"{tmp_path}/run") == f"{tmp_path}/run@{step}"
    assert task_runs.absolute(f"{tmp_path}/run@5") == f"{tmp_path}/run@5"
    (tmp_path / "model").mkdir()
    assert task_runs.absolute(f"{tmp_path}/model") == f"{tmp_path}/model"


def test_a_name_on_the_hub_stays_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    name, model = "hf:owner/model@main", load("wiki_books_small").model
    monkeypatch.setattr("bert_jax.training.resolve.find_architecture", lambda source: model)
    assert task_runs.absolute(name) == name
    assert task_runs.random_weights(name)[0] == f"--config.task.tokenizer={name}"


def test_a_task_with_fewer_rows_has_no_curve_and_the_others_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(task_runs, "find_task", lambda *about: asked.append(about[1]))
    monkeypatch.setattr(task_runs, "run_all", lambda *about: [])
    words = [f"--pretrained={tmp_path}", f"--out={tmp_path}", "--tasks=cola,sst2", "--rows=9"]
    monkeypatch.setattr(sys, "argv", ["label_efficiency.py", *words, "--seeds=1"])
    label_efficiency.main()
    assert asked == ["cola", "sst2"]
    assert "# cola has fewer than 9 rows" in capsys.readouterr().out
