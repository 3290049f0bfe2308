"""A table of scores from training to predictions, with several seeds; and losses that explode."""

import dataclasses
import json
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import pearsonr
from small_task import WORDS, task_config, write_task

import bert_jax
from bert_jax import cli
from bert_jax.config.schema import Config
from bert_jax.errors import NumbersError, UserError
from bert_jax.finetune.results import run_result, write_results
from bert_jax.finetune.runs import finetune
from bert_jax.reporting.batch_view import batch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The score of a pair is its number of words with b."""
    folder = write_task(tmp_path_factory.mktemp("task"))
    drawn = np.random.default_rng(3)
    for name, count in (("train", 96), ("held", 40)):
        rows = ["one,two,points"]
        for _ in range(count):
            pair = [list(drawn.choice(WORDS, drawn.integers(1, 7))) for _ in range(2)]
            points = sum(word[0] == "b" for words in pair for word in words)
            rows.append(f"{' '.join(pair[0])},{' '.join(pair[1])},{points / 2}")
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
    columns = {"text": "one", "pair": "two", "label": "points"}
    changes = {"name": "regression", "data": str(folder / "train.csv"), "epochs": 24.0, **columns}
    changes["held_out"] = str(folder / "held.csv")
    return task_config(
        folder,
        mesh__data=-1,
        **{"phases[0]__batch_size": 16},
        optimizer__learning_rate=7e-3,
        **{f"task__{key}": value for key, value in changes.items()},
    )


def test_scores_are_learned_predicted_and_exported(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, data = [], None
    for seed in range(3):
        seeded = dataclasses.replace(config, seed=seed)
        data = finetune(seeded, tmp_path / f"run/seed-{seed}", data=data)
        runs.append(run_result(seeded, tmp_path / f"run/seed-{seed}"))
    write_results(tmp_path / "run", config, data, runs)
    found = json.loads((tmp_path / "run/results.json").read_text())
    assert found["metrics"] == ["pearson", "spearman"]
    values = [run["pearson"] for run in found["runs"]]
    assert len(set(values)) == 3  # each seed draws its own head and order
    assert min(values) > 0.7
    assert found["median"]["pearson"] == statistics.median(values)
    assert found["range"]["pearson"] == [min(values), max(values)]
    assert found["baselines"]["mean score"]["pearson"] is None
    assert 0.5 < found["baselines"]["bag of words"]["pearson"] < 1
    said = capsys.readouterr().out
    assert re.search(r"mean score +not defined +not defined", said)
    assert "held-out: loss" in said

    held = Path(config.task.held_out)
    rows = [line.split(",") for line in held.read_text().splitlines()[1:]]
    out = tmp_path / "scores.tsv"
    words = [f"--model={tmp_path / 'run'}", f"--input={held}", f"--out={out}"]
    assert cli.main(["predict", *words]) == 0
    header, *lines = out.read_text().splitlines()
    assert header == "index\tprediction"
    scores = [float(line.split("\t")[1]) for line in lines]
    right = pearsonr(scores, [float(row[2]) for row in rows]).statistic
    assert right == pytest.approx(max(values), abs=1e-4)  # of the best seed

    best = tmp_path / f"run/seed-{values.index(max(values))}"
    bert_jax.export(best, tmp_path / "exported")
    exported = json.loads((tmp_path / "exported/config.json").read_text())
    assert exported["problem_type"] == "regression"
    model = bert_jax.load(tmp_path / "exported")
    again = [p.score for p in model.predict([(row[0], row[1]) for row in rows])]
    np.testing.assert_allclose(again, scores, atol=1e-4)  # predictions have four decimals
    page = tmp_path / "page.html"
    assert cli.main(["status", f"--workdir={best}", f"--html={page}"]) == 0
    text = page.read_text()
    for wanted in ("Fine-tuning in ", "Held-out pearson", f" predict --model={best} "):
        assert wanted in text
    for of_pretraining in (" fill --model", " evaluate ", "token store", "baseline accuracy"):
        assert of_pretraining not in text


def test_losses_that_explode_end_a_run_with_advice_for_tasks(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    optimizer = {"learning_rate": 1e30, "max_nonfinite_steps": 2, "clip_norm": 0.0}
    wild = config.replace({f"optimizer.{key}": value for key, value in optimizer.items()})
    with pytest.raises(NumbersError, match=r"2 to 3: loss or gradient not finite.*saved as step"):
        finetune(wild, tmp_path / "run")
    capsys.readouterr()
    assert cli.main(["status", f"--workdir={tmp_path / 'run'}"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"steps skipped, loss or gradient not finite: .*\d\n", said)
    with pytest.raises(UserError, match="fine-tuned for regression; only batches of pretraining"):
        batch(str(tmp_path / "run"), 1, store_path=None, rows=None, out=None)
