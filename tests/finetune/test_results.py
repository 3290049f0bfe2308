"""The line about a baseline that is ahead."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bert_jax.config.config_files import load
from bert_jax.config.schema import Config
from bert_jax.finetune.results import write_results
from bert_jax.finetune.task_data import TaskData


class Labels:
    """A kind of task whose predictions are right or wrong: 1 or 0."""

    def metrics(self, task: Any, labels: Any) -> tuple[str, ...]:
        return ("accuracy", "loss of others")

    def baselines(self, task: Any, train: Any, held_out: Any) -> dict[str, list[int]]:
        return {"majority": [1, 0, 0, 0], "bag of words": [1, 1, 1, 0]}

    def compute_metrics(self, task: Any, held_out: Any, predictions: list[int]) -> dict:
        return {"accuracy": sum(predictions) / 4, "loss of others": 9.0}


@pytest.mark.parametrize(
    ("accuracies", "said"),
    [([0.5, 0.7], "bag of words"), ([0.1], "bag of words"), ([0.75], ""), ([0.6, 0.9, 0.8], ""),
     ([None, None], "bag of words")],
)  # fmt: skip
def test_a_baseline_that_is_ahead_is_named(accuracies, said, tmp_path, capsys) -> None:
    out = printed(accuracies, load("glue", {"task.name": "sst2"}), tmp_path, capsys)
    problem = f"is below that of {said}"
    if accuracies[0] is None:
        problem = "is not defined: all predictions may be the same; bag of words has 0.750"
    assert (f"accuracy {problem}: pretrain" in out) == bool(said)
    assert ("try other values" in out) == bool(said)


@pytest.mark.parametrize(
    ("recipe", "width", "task", "said"),
    [
        ("glue", 128, "sst2", True), ("glue", 768, "sst2", False),
        ("glue_small", 128, "sst2", False), ("sentences", 128, "sentence_pairs", False),
    ],
)  # fmt: skip
def test_a_small_model_is_told_of_its_recipe(recipe, width, task, said, tmp_path, capsys) -> None:
    model = {"model.hidden_size": width, "model.num_attention_heads": 2, "task.name": task}
    out = printed([0.1], load(recipe, model), tmp_path, capsys)
    assert "is below that of bag of words: " in out
    assert ("take the recipe for small models, --config=glue_small, pretrain" in out) == said


@pytest.mark.parametrize(
    ("rows", "key"), [(8, "fewest_steps"), (512, "epochs"), (10_000, "most_steps")]
)
def test_the_key_that_decides_the_steps_is_named(rows, key, tmp_path, capsys) -> None:
    limits = {"task.fewest_steps": 10, "task.most_steps": 500, "task.name": "sst2"}
    config = load("glue", {**limits, "task.epochs": 4.0, "phases[0].batch_size": 32})
    out = printed([0.1], config, tmp_path, capsys, rows)
    assert f"try other values of config.task.{key} and config.optimizer.learning_rate" in out


def printed(accuracies, config: Config, folder: Path, capsys, rows: int = 4) -> str:
    """What is printed of runs with these accuracies."""
    examples: Any = SimpleNamespace(examples=[0] * 4, labels=())
    split: Any = SimpleNamespace(examples=examples, rows=rows)
    kind: Any = Labels()
    data = TaskData("", kind, SimpleNamespace(), split, split)  # type: ignore[arg-type]
    runs = [
        {"seed": seed, "accuracy": accuracy, "loss of others": 0.1}
        for seed, accuracy in enumerate(accuracies)
    ]
    write_results(folder, config, data, runs)
    return capsys.readouterr().out.replace("\n", " ")
