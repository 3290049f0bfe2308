"""The line about a baseline that is ahead."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bert_jax.config.config_files import load
from bert_jax.config.schema import Config
from bert_jax.finetune.results import write_results


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
     ([None], "")],
)  # fmt: skip
def test_a_baseline_that_is_ahead_is_named(accuracies, said, tmp_path, capsys) -> None:
    out = printed(accuracies, load("glue", {"task.name": "sst2"}), tmp_path, capsys)
    assert (f"accuracy is below that of {said}: pretrain" in out) == bool(said)
    assert ("is below that of" in out) == bool(said)


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


def printed(accuracies, config: Config, folder: Path, capsys) -> str:
    """What is printed of runs with these accuracies."""
    examples: Any = SimpleNamespace(examples=[0] * 4, labels=[])
    split = SimpleNamespace(examples=examples)
    data: Any = SimpleNamespace(kind=Labels(), train=split, held_out=split, labels=())
    runs = [
        {"seed": seed, "accuracy": accuracy, "loss of others": 0.1}
        for seed, accuracy in enumerate(accuracies)
    ]
    write_results(folder, config, data, runs)
    return capsys.readouterr().out.replace("\n", " ")
