"""`evaluate --per_example` of a fine-tuned run: a value for every held-out example."""

from pathlib import Path

import numpy as np
import pytest
from runs import read_records
from small_task import DEV, TASKS, task_config, write_task

from bert_jax import cli
from bert_jax.errors import UserError
from bert_jax.finetune.results import run_result
from bert_jax.finetune.runs import finetune
from bert_jax.finetune.task_examples import write_task_examples
from bert_jax.training import evaluate, per_example

SLOW = ("multiple_choice", "question_answering")
COUNTED = {"rte": DEV, "question_answering": 26}  # the number of windows


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(t, marks=[pytest.mark.slow] * (t in ("multiple_choice", "question_answering")))
        for t in TASKS
    ],
)
def test_the_sums_are_those_of_the_run(task: str, tmp_path: Path) -> None:
    """And a value that is out of place would not be that of its example alone."""
    folder = write_task(tmp_path / "task")
    config = task_config(folder, task__name=task, task__epochs=1.0, task__stride=8, mesh__data=8)
    data = finetune(config, tmp_path / "run")
    file = tmp_path / "held_out.npz"
    assert cli.main(["evaluate", f"--workdir={tmp_path / 'run'}", f"--per_example={file}"]) == 0
    values, about = per_example.read_losses(file)
    (name,) = values
    assert name == f"task/{task}"
    (objective,) = values[name].sums
    sums = values[name].sums[objective]
    evaluated = read_records(tmp_path / "run", "eval")[-1]
    assert about["step"] == evaluated["step"]
    loss = sums["loss"].sum() / sums["count"].sum()
    np.testing.assert_allclose(loss, evaluated[f"{objective}/loss"], rtol=1e-5)
    assert about["forms"][name]["metrics"][f"{objective}/loss"] == pytest.approx(loss, rel=1e-5)
    assert set(values[name].document) == set(range(DEV))
    assert len(values[name].document) == data.held_out.rows
    if task == "rte":
        assert sums["correct"].mean() == pytest.approx(
            run_result(config, tmp_path / "run")["accuracy"]
        )
        for split in ("train", "dev"):  # with other examples nothing is measured
            path = folder / f"{split}.tsv"
            text = path.read_text()
            path.write_text("\n".join(text.splitlines()[:-1]) + "\n")
            with pytest.raises(UserError, match="of the task are no longer those of the run"):
                write_task_examples(tmp_path / "run", tmp_path / "other.npz")
            path.write_text(text)
        assert not (tmp_path / "other.npz").exists()


@pytest.mark.slow
def test_what_is_not_of_a_task_is_refused(tmp_path: Path, capsys) -> None:
    folder = write_task(tmp_path / "task")
    finetune(task_config(folder, task__epochs=0.2, mesh__data=8), tmp_path / "run")
    words = ["evaluate", f"--workdir={tmp_path / 'run'}", f"--per_example={tmp_path / 'x.npz'}"]
    assert cli.main([*words, "--form=single/token"]) == 2
    assert "--form: " in capsys.readouterr().err
    assert cli.main([*words, "--step=999"]) == 1
    assert "999" in capsys.readouterr().err
    assert evaluate.task_of(tmp_path / "run") == "rte"
    with pytest.raises(UserError, match="fine-tuned for rte"):
        evaluate.evaluate_run(tmp_path / "run")
