"""benchmarks/vector_runs.py: which loss it chooses, what it trains again, and its table."""

import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import task_runs
import vector_runs


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The flags of what would have been run: CoSENT is better on the tenth of train."""
    run: list[dict[str, str]] = []

    def take(words: list[str], log: Path) -> None:
        flags = dict(word[2:].partition("=")[::2] for word in words[1:])
        run.append(flags)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        if words[0] == "finetune":
            Path(flags["workdir"]).mkdir()
            value = 0.6 if flags["config.task.loss"] == "cosent" else 0.5
            results = Path(flags["workdir"]) / "results.json"
            results.write_text(json.dumps({"runs": [{"spearman": value}]}))
            return
        model = flags["model"]
        seed = int(Path(model).name.split("-")[2])
        values = {model: 0.7 + seed / 10, "words": 0.65, f"{model}@0": 0.1}
        rows = [
            {"measure": measure, "model": model, "value": value}
            for measure in ("Spearman", "Pearson")
            for model, value in values.items()
        ]
        log.write_text(f"a line before it\n{json.dumps({'rows': rows})}\n")

    monkeypatch.setattr(vector_runs, "run_command", take)
    monkeypatch.setattr(task_runs, "random_weights", lambda source: ("--config.model.x=1",))
    return run


def measure(out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    (out / "data" / "glue" / "STS-B").mkdir(parents=True, exist_ok=True)
    words = ["--pretrained=run", f"--data={out / 'data'}", f"--out={out}", "--tests=stsb"]
    monkeypatch.setattr(sys, "argv", ["vector_runs.py", *words, "--seeds=2"])
    vector_runs.main()
    return capsys.readouterr().out


def test_the_loss_is_chosen_on_train_and_finished_runs_are_not_made_again(
    tmp_path: Path,
    commands: list[dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = measure(tmp_path, monkeypatch, capsys)
    trained = [flags for flags in commands if "workdir" in flags]
    first, second, *others = [flags["config.task.loss"] for flags in trained]
    assert (first, second, set(others), len(others)) == ("cosine", "cosent", {"cosent"}, 4)
    assert [flags["config.task.data"].endswith("train.tsv") for flags in trained[:3]] == [
        True, True, False,
    ]  # fmt: skip
    (row,) = [line for line in said.splitlines() if line.startswith("| pretrained, after")]
    assert (
        row == "| pretrained, after | 2 | 0.7500 (0.7000 to 0.8000) | 0.7500 (0.7000 to 0.8000) |"
    )
    assert "| pretrained, before |  | 0.1000 | 0.1000 |" in said
    assert "| words |  | 0.6500 | 0.6500 |" in said

    lost = next((tmp_path / "runs").glob("stsb-random-1-*.json"))
    lost.unlink()
    shutil.rmtree(lost.with_suffix(""), ignore_errors=True)
    commands.clear()
    again = measure(tmp_path, monkeypatch, capsys)
    assert [flags.get("config.seed") for flags in commands] == ["1"]  # its evaluation is kept
    assert (row in again, said.count("|")) == (True, again.count("|"))
