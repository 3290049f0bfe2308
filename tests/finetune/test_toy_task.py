"""A kind of task is one file and a row: here the cosine of two sentences' vectors."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from rows import with_row
from runs import read_meta
from small_task import WORDS, task_config, write_task
from toy_task import COSINE, SIMILARITY, SIZE

import bert_jax
from bert_jax import cli
from bert_jax.checkpoint import manager
from bert_jax.errors import StoppedError, UserError
from bert_jax.finetune.results import run_result, write_results
from bert_jax.finetune.runs import finetune
from bert_jax.finetune.tasks.task_kinds import KINDS
from bert_jax.objectives.known_objectives import OBJECTIVES
from bert_jax.training.options import RunOptions
from bert_jax.workdir.layout import Workdir


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Registers the kind and its objective, and writes a table: two sentences are as similar as
    they have words in common."""
    monkeypatch.setitem(OBJECTIVES, COSINE.name, COSINE)
    drawn, rows = np.random.default_rng(0), ["a\tb\tsimilarity"]
    for _ in range(90):
        first, second = (drawn.choice(WORDS[:12], 6) for _ in range(2))
        shared = len({*first} & {*second}) / len({*first} | {*second})
        rows.append(f"{' '.join(first)}\t{' '.join(second)}\t{shared:.3f}")
    path = write_task(tmp_path / "task") / "pairs.tsv"
    path.write_text("\n".join(rows) + "\n")
    with with_row(KINDS, SIMILARITY.name, SIMILARITY):
        yield path


@pytest.mark.slow
def test_a_kind_of_one_file_is_trained_resumed_predicted_and_exported(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dropout = {"model__hidden_dropout_prob": 0.1, "checkpoint__every_steps": 4, "mesh__data": -1}
    config = task_config(table.parent, task__name="similarity", task__epochs=1.0, **dropout)
    config = config.replace("task.data", str(table))
    with pytest.raises(StoppedError):
        finetune(config, tmp_path / "stopped", options=RunOptions(stop_after=5))
    data = finetune(config, tmp_path / "stopped")
    finetune(config, tmp_path / "whole")
    (last,) = manager.find_steps(Workdir.open(tmp_path / "whole"), None)
    one, two = (read_meta(tmp_path / name, last) for name in ("stopped", "whole"))
    assert one["fingerprints"] == two["fingerprints"]
    assert one["evaluation"] == two["evaluation"]
    write_results(tmp_path, config, data, [run_result(config, tmp_path / "whole")])
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["metrics"] == ["spearman"]
    assert set(results["baselines"]) == {"same length"}
    out, values = tmp_path / "cosines.txt", tmp_path / "values.npz"
    model = f"--model={tmp_path / 'whole'}"
    assert cli.main(["predict", model, f"--input={table}", f"--out={out}"]) == 0
    cosines = [float(line) for line in out.read_text().splitlines()]
    assert len(cosines) == 90
    assert max(map(abs, cosines)) <= 1
    assert cli.main(["evaluate", f"--workdir={tmp_path / 'whole'}", f"--per_example={values}"]) == 0
    bert_jax.export(tmp_path / "whole", tmp_path / "out")
    assert "in heads.safetensors, since BertModel has no place for them: vector" in (
        capsys.readouterr().out
    )
    heads = safetensors.numpy.load_file(tmp_path / "out/heads.safetensors")
    assert heads["vector.weight"].shape == (SIZE, 32)
    assert 'vectors = dense("vector", hidden[:, 0])' in (tmp_path / "out/README.md").read_text()
    assert bert_jax.load(tmp_path / "out").encode("bal").shape == (1, 32)


def test_its_name_is_known_where_names_are_listed(table: Path) -> None:
    config = task_config(table.parent, task__name="similarty")
    with pytest.raises(UserError, match=r"config.task.name='similarty'; did you mean similarity\?"):
        finetune(config, table.parent / "run")
