"""A task as a measure of an ablation: what is checked before anything runs, and real runs."""

import csv
from pathlib import Path
from typing import Any

import ablated
import pytest
from corpus import small_store
from small_task import DEV, write_task

from bert_jax import cli
from bert_jax.ablation import budget, record, spec, tasks
from bert_jax.ablation.layout import AblationDir
from bert_jax.ablation.stores import open_stores
from bert_jax.config.config_files import execute
from bert_jax.config.serialization import plain
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import UserError
from bert_jax.training import per_example

REPLACED = {
    "data.replaced_tokens": True, "model.generator.hidden_size": 16,
    "model.generator.intermediate_size": 32,
}  # fmt: skip
MEASURES = ("single/token", "task/pairs")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"), documents=60, held_out=20, repeat=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("task"))


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "task.name": "rte", "task.data": str(folder), "task.epochs": 1.0,
        "phases[0].batch_size": 8, "phases[0].seq_length": 32, "compute.dtype": "float32", **more,
    }  # fmt: skip


def read(path: Path, store: TokenStore) -> spec.Ablation:
    return spec.parse_ablation(plain(execute(path)) | {"store": str(store.path)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"measures": ("single/token", "task/pair")}, "task/pair is not in config.tasks.*pairs"),
        ({"measures": ("single/token",)}, "'pairs' is not measured; add task/pairs"),
        ({"more": {"task.epoch": 1}}, "config.tasks, 'pairs': .*task.epochs"),
        ({"more": {"task.name": "rtee"}}, "config.tasks, 'pairs': .*rte"),
        (
            {"measures": ("single/token", "task/a/b"), "name": "a/b"},
            "'a/b': give a name that a folder can have",
        ),
        (
            {"more": {"task.name": "sentence_pairs"}},
            "config.tasks, 'pairs': the loss of sentence_pairs compares examples.*another task",
        ),
        (
            {"more": {"task.name": "scored_pairs", "task.loss": "cosent"}},
            "the loss of scored_pairs compares examples.*; set task.loss=cosine",
        ),
        ({"more": {"task.data": ""}}, "config.tasks, 'pairs': config.task.data is empty"),
        (
            {"more": {"task.keep": "best"}},
            "config.tasks, 'pairs': task.keep=best: each run would be measured at another step",
        ),
        (
            {
                "variants": {
                    "a": {},
                    "short": {"model.max_position_embeddings": 31, "phases[0].seq_length": 16},
                }
            },
            r"'pairs': .*max_position_embeddings=31.* \(variant 'short'\)",
        ),
    ],
)
def test_a_wrong_task_is_one_line(changes, message, tmp_path, store, folder):
    own = {changes.get("name", "pairs"): settings(folder, **changes.get("more", {}))}
    options = {"measures": MEASURES} | {
        k: changes[k] for k in ("measures", "variants") if k in changes
    }
    file = ablated.write(tmp_path, tasks=own, **options)
    with pytest.raises(UserError, match=message):
        read(file, store)


def test_a_loss_of_each_example_is_compared(tmp_path, store, folder):
    for name in ("scored_pairs", "labeled_pairs"):
        own = {"pairs": settings(folder, **{"task.name": name})}
        assert read(ablated.write(tmp_path, measures=MEASURES, tasks=own), store).tasks


def test_files_are_read_before_anything_runs(tmp_path, store, folder):
    missing = {"pairs": settings(folder / "nowhere")}
    ablation = read(ablated.write(tmp_path, measures=MEASURES, tasks=missing), store)
    with pytest.raises(UserError, match=r"config.tasks, 'pairs': .*nowhere"):
        record.claim(AblationDir.open(tmp_path / "A"), ablation)
    with pytest.raises(UserError, match="task/pairs starts from local runs; give a local"):
        tasks.check_local(MEASURES, "gs://bucket/A")


def test_variants_with_other_text_are_compared_by_tasks_alone(tmp_path, store, folder):
    """And where only the training text differs, by all measures."""
    own = {"pairs": settings(folder)}
    for name, options, what in (
        ("words", {"words": "v"}, "vocabulary"),
        ("text", {"held_out": 21}, "held-out text"),
        ("more", {"documents": 70}, ""),
    ):
        common = {"documents": 60, "held_out": 20, "repeat": True}
        other = small_store(tmp_path / name, **(common | options))
        variants = {"a": {}, "b": {"data.store": str(other.path)}}
        both = ablated.write(tmp_path, variants=variants, measures=MEASURES, tasks=own)
        if what:
            message = f"single/token compares masked tokens, but 'b' has another {what} than 'a'"
            with pytest.raises(UserError, match=message):
                read(both, store)
        else:
            assert read(both, store).variants[1].config.data.store == str(other.path)
            weighted = {"measures": ("single/token", "single/frequency@0.2")}
            message = "single/frequency@0.2 masks by the counts of the training text, but 'b' has"
            with pytest.raises(UserError, match=message):
                read(ablated.write(tmp_path, variants=variants, **weighted), store)
        task = {"measures": ("task/pairs",), "primary": "task/pairs", "tasks": own}
        ablation = read(ablated.write(tmp_path, variants=variants, **task), store)
        ablation, spent = budget.equalize_budgets(ablation, open_stores(ablation.variants))
        assert spent["b"].steps > 0
        words = spec.words(ablation, spec.runs(ablation)[1], "A")
        assert f"--config.data.store={other.path}" in words
        assert set(record.describe(ablation)["stores"]) == {"b"}


def test_models_and_generators_are_compared_by_tasks_alone(tmp_path, store, folder):
    variants = {"bert": {}, "electra": REPLACED}
    both = ablated.write(tmp_path, variants=variants)
    message = "single/token compares masked tokens, but of 'electra' a generator .*'bert' the model"
    with pytest.raises(UserError, match=message):
        read(both, store)
    own = {"measures": ("task/pairs",), "primary": "task/pairs"}
    task = ablated.write(tmp_path, variants=variants, tasks={"pairs": settings(folder)}, **own)
    assert read(task, store).tasks == ("task/pairs",)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.processes
def test_generators_are_compared_with_one_another(tmp_path, store, capfd):
    variants = {"15%": REPLACED, "25%": {**REPLACED, "data.mask_rate": 0.25}}
    few = {"phases[0].steps": 20, "phases[0].max_predictions": 8}
    file = ablated.write(tmp_path, variants=variants, seeds=(0,), **few)
    assert cli.main(ablated.words(file, store, tmp_path / "A")) == 0
    assert "of the run's generator, hidden_size=16" in capfd.readouterr().out
    values, _ = per_example.read_losses(tmp_path / "A/runs/25%/0.npz")
    assert {name: set(own.sums) for name, own in values.items()} == {
        "own": {"mlm", "rtd"}, "single/token:32": {"mlm"}, "single/span:32": {"mlm"},
    }  # fmt: skip


@pytest.mark.nightly
@pytest.mark.processes
def test_runs_are_fine_tuned_and_their_examples_compared(tmp_path, store, folder):
    file = ablated.write(
        tmp_path,
        measures=MEASURES,
        primary="task/pairs",
        tasks={"pairs": settings(folder)},
        **{"phases[0].steps": 20},
    )
    workdir = tmp_path / "A"
    words = ablated.words(file, store, workdir)
    assert cli.main(words) == 0
    one = workdir / "runs/span/1/tasks/pairs.npz"
    values, about = per_example.read_losses(one)
    assert len(values["task/rte"].document) == DEV
    assert about["forms"]["task/rte"]["metrics"]["single_label_classification/loss"] > 0
    one.unlink()
    assert cli.main(words) == 0  # measured again, not trained again
    assert per_example.read_losses(one)[1]["run_id"] == about["run_id"]
    assert cli.main(["ablate", "report", f"--workdir={workdir}"]) == 0
    lines = (workdir / "differences.csv").read_text().splitlines()
    rows = list(csv.DictReader(lines))
    judged = [row for row in rows if row["measure"] == "task/pairs" and row["what"] == "loss"]
    assert [(row["variant"], row["seeds"], row["documents"]) for row in judged] == [
        ("span", "3", str(DEV))
    ]
    assert judged[0]["verdict"] in ("shown", "not distinguishable")
    assert "task/pairs, held-out examples, nats" in (workdir / "report.html").read_text()
