"""benchmarks/network_runs.py: steps of equal FLOPs, what is trained again, its table."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from corpus import small_store
from safetensors.numpy import load_file, save_file
from small_task import DEV, write_task

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import commands
import network_runs
import task_runs

from bert_jax.config.config_files import load


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The flags of what would have been run. The student with a teacher is right on 9 of 10."""
    made: list[dict[str, str]] = []

    def take(words: list[str], log: Path, *_: object, **__: object) -> None:
        flags = dict(word[2:].partition("=")[::2] for word in words[1:])
        made.append({"command": words[0], **flags})
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        folder = Path(flags.get("workdir", log.parent))
        folder.mkdir(parents=True, exist_ok=True)
        if words[0] == "pretrain":
            seconds = 3.0, 2.0, 600.0  # it waited
            steps = [{"kind": "train", "step_seconds": each} for each in seconds]
            records = enumerate([*steps, {"kind": "finished"}])
            text = "".join(json.dumps({"step": i, **record}) + "\n" for i, record in records)
            (folder / "metrics.jsonl").write_text(text)
        if words[0] == "finetune":
            value = 0.9 if "half_teacher-" in folder.name else 0.5
            results = {"metrics": ["accuracy"], "runs": [{"accuracy": value}]}
            (folder / "results.json").write_text(json.dumps(results))
        if words[0] == "predict":
            labels = [each.label for each in rte(Path(flags["input"])).read()[3].examples]
            wrong = DEV // 10 if "half_teacher-" in flags["model"] else DEV // 2
            found = [1 - label if i < wrong else label for i, label in enumerate(labels)]
            rows = "".join(f"{i}\t{NAMES[x]}\n" for i, x in enumerate(found))
            Path(flags["out"]).write_text(f"index\tprediction\n{rows}")

    for module in (commands, task_runs):
        monkeypatch.setattr(module, "run_command", take)
    monkeypatch.setattr(network_runs, "find_task", lambda options, name, seed: rte(options.data))
    monkeypatch.setattr(network_runs, "TASKS", ("rte",))
    monkeypatch.setattr(task_runs, "RESAMPLES", 100)
    monkeypatch.setattr("bert_jax.training.resolve.find_architecture", lambda source: MODEL)
    return made


NAMES = ("entailment", "not_entailment")
MODEL = load("wiki_books_small").model


def rte(folder: Path) -> task_runs.Task:
    return task_runs.glue_task("rte", folder)


def options(tmp_path: Path) -> list[str]:
    store = small_store(tmp_path / "store", documents=40).path
    data = write_task(tmp_path / "RTE")
    return [
        "network_runs.py", f"--store={store}", "--teacher=x@9", f"--data={data}", "--tasks=rte",
        f"--out={tmp_path / 'out'}", "--seeds=3", "--steps=200",
    ]  # fmt: skip


def test_all_have_the_flops_of_the_first_and_finished_runs_are_not_made_again(
    tmp_path: Path, run: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", options(tmp_path))
    network_runs.main()
    pretrained = {
        Path(flags["workdir"]).name: flags for flags in run if flags["command"] == "pretrain"
    }
    steps = {name: int(flags["config.phases[0].steps"]) for name, flags in pretrained.items()}
    assert steps["masked_tokens"] == 200
    assert steps["half_no_teacher"] == steps["half_teacher_not_counted"] > 300
    # A third of a student's step and of its head is a forward pass, which a teacher has whole.
    assert 200 < steps["half_teacher"] < steps["half_no_teacher"]
    assert 130 < steps["replaced_tokens"] < 200
    assert pretrained["half_teacher"]["config.distillation.teacher_layers"] == "0,3"
    assert pretrained["replaced_tokens"]["config.model.generator.num_attention_heads"] == "2"
    assert [flags["command"] for flags in run].count("finetune") == 5 * 3

    table = (tmp_path / "out" / "table.md").read_text()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    rows = {row[0]: row[1:] for row in cells if row}
    spent = {name: float(row[1]) for name, row in rows.items() if name in network_runs.STARTS}
    free = spent.pop(network_runs.FREE)  # its teacher's are shown, too
    assert max(spent.values()) < 1.01 * min(spent.values()) < free
    assert rows["masked tokens"][2] == "10"  # minutes of 200 steps of 3 seconds
    assert rows["half, teacher"][3:] == ["0.9000", "0.9000 0.9000 0.9000"]
    mean, detectable = rows["half, teacher less half, no teacher"]
    assert mean.startswith("+0.38")
    assert "excludes 0" in mean
    assert 0 < float(detectable) < 0.4
    assert rows["replaced tokens less masked tokens"][0].startswith("+0.0000")

    run.clear()
    network_runs.main()
    again = (tmp_path / "out" / "table.md").read_text()
    assert (run, again.split(" held-out")[0]) == ([], table.split(" held-out")[0])  # then the load


def test_some_starts_are_compared_before_the_others(
    tmp_path: Path, run: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = options(tmp_path)
    monkeypatch.setattr(sys, "argv", [*words, "--starts=half_teacher"])
    network_runs.main()
    commands = [flags["command"] for flags in run]
    assert (commands.count("pretrain"), commands.count("finetune")) == (2, 2 * 3)
    table = (tmp_path / "out" / "table.md").read_text()
    assert "half, teacher less masked tokens" in table
    assert "no teacher" not in table
    monkeypatch.setattr(sys, "argv", words)
    network_runs.main()
    commands = [flags["command"] for flags in run]
    assert (commands.count("pretrain"), commands.count("finetune")) == (5, 5 * 3)
    assert "half, teacher less half, no teacher" in (tmp_path / "out" / "table.md").read_text()


def test_a_teacher_of_another_size_is_one_line(
    tmp_path: Path,
    run: list[dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = dataclasses.replace(MODEL, num_hidden_layers=2)
    monkeypatch.setattr("bert_jax.training.resolve.find_architecture", lambda source: small)
    monkeypatch.setattr(sys, "argv", options(tmp_path))
    with pytest.raises(SystemExit):
        network_runs.main()
    assert capsys.readouterr().err == "error: --teacher=x@9: its num_hidden_layers is 2, not 4\n"
    assert run == []


def test_a_students_layers_are_spread_as_distilberts() -> None:
    assert network_runs.spread(12, 6) == [0, 2, 4, 7, 9, 11]
    assert network_runs.spread(2, 1) == [0]


def test_a_teacher_is_fine_tuned_once_and_measured_beside_its_students(
    tmp_path: Path, run: list[dict[str, str]]
) -> None:
    out, data = tmp_path / "out", write_task(tmp_path / "RTE")
    options = argparse.Namespace(minilm=six_layers(tmp_path), out=out, at_once=1)
    drawn = [rte(data)] * 3
    measured = network_runs.teach(options, drawn)
    assert [len(runs) for runs in measured.values()] == [3, 3, 3]
    trained = [flags for flags in run if flags["command"] == "finetune"]
    assert len(trained) == 9
    teachers = [Path(flags["workdir"]) for flags in trained[:3]]
    taught = [flags.get("config.task.teacher") for flags in trained[3:]]
    assert taught == [x for teacher in teachers for x in (None, str(teacher))]
    assert sorted(path for path in (out / "runs").iterdir() if path.is_dir()) == sorted(teachers)
    run.clear()
    assert network_runs.teach(options, drawn).keys() == measured.keys()
    assert not run
    (teachers[0] / "results.json").unlink()  # as if its training had been interrupted
    network_runs.teach(options, drawn)
    assert [flags["command"] for flags in run] == ["finetune", "predict"]


def test_a_cut_model_has_layers_0_2_and_4(tmp_path: Path) -> None:
    out = network_runs.cut(six_layers(tmp_path), tmp_path / "out")
    found = load_file(out / "model.safetensors")
    layers = [found.pop(f"encoder.layer.{i}.a.weight")[0] for i in range(3)]
    assert (layers, list(found)) == ([0, 2, 4], ["embeddings.b"])
    config = json.loads((out / "config.json").read_text())
    assert config == {"num_hidden_layers": 3, "hidden_size": 3}
    assert (out / "vocab.txt").read_text() == "a\n"


def six_layers(folder: Path) -> Path:
    model = folder / "model"
    model.mkdir()
    tensors = {f"encoder.layer.{i}.a.weight": np.full(3, i, np.float32) for i in range(6)}
    save_file({**tensors, "embeddings.b": np.ones(2, np.float32)}, model / "model.safetensors")
    (model / "config.json").write_text('{"num_hidden_layers": 6, "hidden_size": 3}')
    (model / "vocab.txt").write_text("a\n")
    return model
