"""Fine-tuning end to end: batches, losses, resuming, what a run writes, and its errors."""

import dataclasses
import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from runs import read_meta, read_records
from small_task import DEV, TASKS, TRAIN, task_config, write_task
from task_steps import SGD, batches_of, trained

import bert_jax
from bert_jax import cli
from bert_jax.checkpoint import manager
from bert_jax.errors import StoppedError, UserError
from bert_jax.finetune.predict_file import find_model
from bert_jax.finetune.results import run_result, write_results
from bert_jax.finetune.runs import finetune
from bert_jax.finetune.task_data import open_task
from bert_jax.finetune.tasks.encoding import Targets
from bert_jax.training import step as steps
from bert_jax.training.options import RunOptions
from bert_jax.workdir import description
from bert_jax.workdir.layout import Workdir


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("task"))


def example_of(arrays: Targets, own: dict[str, object]) -> tuple:
    """What a batch has of one example, in a form that can be counted.

    own: of each group of arrays, the indices of the example.
    """
    return tuple(
        (name, np.asarray(array[own[group]]).tobytes())
        for group in ("of_tokens", "of_examples", "positions")
        for name, array in sorted(getattr(arrays, group).items())
    )


def test_a_task_may_have_any_schedule_and_measure_attention(folder: Path, tmp_path: Path) -> None:
    """Of wsd, the steps of the default warm-up are more than a task has."""
    changes = {"optimizer.schedule": "wsd", "evaluation.attention": True, "mesh.data": -1}
    finetune(task_config(folder).replace(changes), tmp_path / "run")
    evaluated = read_records(tmp_path / "run", "eval")[-1]
    assert 0 < evaluated["attention/layer_0/head_0/left"] < 1


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_every_example_is_in_one_batch_of_an_epoch(folder: Path, task: str) -> None:
    """A long sentence or text is several windows, each of them whole."""
    config, batches = batches_of(task_config(folder, task__name=task))
    arrays, C = batches._arrays, batches.sequences
    assert (4 if task == "multiple_choice" else 1) == C
    whole = Counter(
        example_of(
            arrays,
            {
                "of_tokens": slice(first, end),
                "of_examples": i,
                "positions": slice(C * i, C * i + C),
            },
        )
        for i, (first, end) in enumerate(itertools.pairwise(batches._encoded.starts[::C]))
    )
    assert batches.rows_per_epoch == whole.total() >= TRAIN
    assert (batches.rows_per_epoch > TRAIN) == (task in ("tagging", "question_answering"))
    for epoch in range(2):
        seen: Counter[tuple] = Counter()
        for index in range(batches.steps_per_epoch):
            batch = batches.batch(epoch * batches.steps_per_epoch + index)
            for name in ("example_ids", *arrays.of_tokens):  # a row's strips after one another
                batch[name] = batch[name].reshape(len(batch[name]), -1)
            for row, slot in zip(*np.nonzero(_used(batch)[:, ::C]), strict=True):
                sequences = C * slot + np.arange(C)
                everywhere = np.arange(batch["cls_positions"].shape[1])
                assert np.array_equal(np.atleast_1d(everywhere[batches.slots(slot)]), sequences)
                own = [np.flatnonzero(batch["example_ids"][row] == n + 1) for n in sequences]
                found = {
                    group: {name: batch[name][row] for name in getattr(arrays, group)}
                    for group in ("of_tokens", "of_examples", "positions")
                }
                for values in found["positions"].values():
                    values[sequences] -= np.array([one[0] for one in own], values.dtype)
                places = {
                    "of_tokens": np.concatenate(own), "of_examples": slot, "positions": sequences
                }  # fmt: skip
                seen[example_of(Targets(**found), places)] += 1
        assert seen == whole
    assert config.phases[0].steps == 3 * batches.steps_per_epoch


def _used(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Whether a slot has an example, bool [B, N]."""
    slots = np.arange(1, batch["cls_positions"].shape[1] + 1)
    return (batch["example_ids"][:, None] == slots[:, None]).any(-1)


@pytest.mark.parametrize("task", TASKS)
def test_a_batch_of_some_rows_is_a_part_of_the_whole(folder: Path, task: str) -> None:
    _, batches = batches_of(task_config(folder, task__name=task))
    whole, some = batches.batch(11), batches.batch(11, [2, 0])
    for name, array in whole.items():
        np.testing.assert_array_equal(some[name], array[[2, 0]], err_msg=name)


PADDED = {"phases[0]__examples_per_row": 1}
DEVICES = {"mesh__data": 8}
FORMS = {
    "padded": PADDED,
    "longer rows": {"phases[0]__row_length": 64},
    "8 devices": DEVICES,
    "a mesh of both kinds": {"mesh__data": 2, "mesh__tensor": 2, "phases[0]__micro_batches": 2},
    "accumulated": {"phases[0]__micro_batches": 2},
    "padded on 8 devices": PADDED | DEVICES,
}
USUAL = [(task, "padded on 8 devices") for task in ("rte", "multiple_choice")]


def marks_of(task: str, form: str) -> list[pytest.MarkDecorator]:
    """Of several sequences in an example every form is slow, of others one; the rest nightly."""
    if (task, form) in USUAL:
        return []
    slow = task == "multiple_choice" or form == "a mesh of both kinds"
    return [pytest.mark.slow if slow else pytest.mark.nightly]


@pytest.mark.parametrize(
    ("task", "form"),
    [pytest.param(task, form, marks=marks_of(task, form)) for task in TASKS for form in FORMS],
)
def test_the_form_of_a_batch_changes_no_loss_and_no_update(
    folder: Path, task: str, form: str
) -> None:
    """Three steps like SGD's: Adam with a large eps."""
    sgd = {key.replace(".", "__"): value for key, value in SGD.items()}
    sgd, changes = sgd | {"task__name": task}, FORMS[form]
    if task == "multiple_choice":  # of small weights, the choices have nearly the same scores
        sgd["model__initializer_range"] = 0.25
    losses, before, params = trained(task_config(folder, **sgd), 3)
    devices = changes.get("mesh__data", 1)
    others, _, after = trained(task_config(folder, **sgd, **changes), 3, devices)
    np.testing.assert_allclose(others, losses, rtol=1e-6)
    moved = jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max(), before, params))
    assert sorted(moved)[1] > 1e-3  # all but the one bias that adds the same to all
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, atol=1e-6), params, after)


EVERY_TASK = pytest.mark.parametrize(
    "task", ["rte", *(pytest.param(task, marks=pytest.mark.slow) for task in TASKS[1:])]
)


def note_compiling(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that are compiled from now on."""
    compiled: list[str] = []
    for name in ("compile_train", "compile_evaluate"):
        real = getattr(steps.StepFunctions, name)

        def noted(self: Any, *args: Any, real: Any = real, name: str = name) -> Any:
            compiled.append(name)
            return real(self, *args)

        monkeypatch.setattr(steps.StepFunctions, name, noted)
    return compiled


@EVERY_TASK
def test_a_run_that_was_stopped_resumes_to_the_same_bits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """And only with the same examples; one training and one evaluation step are compiled."""
    dropout = {"model__hidden_dropout_prob": 0.1, "task__epochs": 1.0, "task__name": task}
    config = task_config(
        folder, mesh__data=-1, checkpoint__every_steps=4, task__evaluations=3, **dropout
    )
    with pytest.raises(StoppedError):
        finetune(config, tmp_path / "stopped", options=RunOptions(stop_after=5))
    other, moved = write_task(tmp_path / "other", seed=1), write_task(tmp_path / "moved")
    with pytest.raises(UserError, match=r"cannot resume with another data\.(train|tokenizer)"):
        finetune(config.replace("task.data", str(other)), tmp_path / "stopped")
    finetune(config.replace("task.data", str(moved)), tmp_path / "stopped")
    compiled = note_compiling(monkeypatch)
    finetune(config, tmp_path / "whole")
    assert compiled == ["compile_train", "compile_evaluate"]
    assert len(read_records(tmp_path / "whole", "eval")) == 3
    last = max(manager.find_steps(Workdir.open(tmp_path / "whole"), None))
    meta, other = (read_meta(tmp_path / name, last) for name in ("stopped", "whole"))
    assert meta["fingerprints"] == other["fingerprints"]
    assert meta["evaluation"] == other["evaluation"]


def test_what_a_run_learned_is_evaluated_predicted_and_exported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = task_config(folder, mesh__data=-1, task__epochs=6.0, task__keep="best")
    finetune(config, tmp_path / "run")
    (best,) = manager.find_steps(Workdir.open(tmp_path / "run"), "best")
    records = read_records(tmp_path / "run", "eval")
    assert len(records) == 6
    highest = max(record["task/accuracy"] for record in records)
    (chosen,) = [record for record in records if record["step"] == best]
    assert chosen["task/accuracy"] == highest == 1 - chosen["error"]
    words = [f"--model={tmp_path / 'run'}", f"--input={folder}", "--split=dev"]
    assert cli.main(["predict", *words, f"--out={tmp_path / 'predictions.tsv'}"]) == 0
    header, *lines = (tmp_path / "predictions.tsv").read_text().splitlines()
    dev = [line.split("\t") for line in (folder / "dev.tsv").read_text().splitlines()[1:]]
    assert header == "index\tprediction"
    assert len(lines) == DEV
    right = sum(line == f"{row[0]}\t{row[3]}" for line, row in zip(lines, dev, strict=True))
    assert right / DEV == pytest.approx(highest)
    bert_jax.export(tmp_path / "run", tmp_path / "out")
    values = json.loads((tmp_path / "out/config.json").read_text())
    assert values["architectures"] == ["BertForSequenceClassification"]
    assert values["id2label"] == {"0": "entailment", "1": "not_entailment"}
    card = (tmp_path / "out/README.md").read_text()
    digests = read_meta(tmp_path / "run", best)["data"]
    assert f"trained for {best:,} steps on the task `rte`" in card
    assert "outputs, by id: `entailment`, `not_entailment`." in card
    assert f"| training | train.tsv | {digests['train'][:16]}… | {TRAIN} | 0 |" in card
    assert f"| held out | dev.tsv | {digests['held_out'][:16]}… | {DEV} | 0 |" in card
    assert f"| accuracy | {highest:.4f} |" in card
    for other in ("document", "masking", "pairing", "token store", str(folder)):
        assert other not in card
    model = bert_jax.load(tmp_path / "out")
    found = [p.label for p in model.predict([(row[1], row[2]) for row in dev])]
    assert [line.split("\t")[1] for line in lines] == found
    assert "held-out: loss" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "asked", "wanted"),
    [
        ({"task": {"keep": "best"}}, None, "best"),
        ({"task": {"keep": "best"}}, 7, 7),
        ({"task": {"keep": "last"}}, None, None),
        ({}, None, None),  # of an old version
    ],
)
def test_without_a_step_a_model_is_that_of_the_step_that_the_task_keeps(
    config: dict[str, Any], asked: int | None, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In exports, evaluations of vectors, predictions and as `config.init`."""
    monkeypatch.setattr(manager, "find_steps", lambda _, which: [which])
    assert manager.chosen_step(Workdir.open("/nowhere"), asked, {"config": config}) == wanted


@pytest.mark.slow
def test_a_lower_layer_has_a_lower_rate(folder: Path) -> None:
    """The first update of Adam is the rate itself, up to its sign."""
    config = task_config(folder, optimizer__layer_decay=0.5, optimizer__weight_decay=0.0)
    config = dataclasses.replace(config, task=dataclasses.replace(config.task, warmup_share=0.0))
    _, before, after = trained(config, 1)
    moved = jax.tree.map(lambda a, b: np.abs(b - a), before, after)
    rate = moved["classifier"]["output"]["kernel"].max()
    layers = next(
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(moved["encoder"])
        if leaf.ndim == 3 and "layers" in jax.tree_util.keystr(path)
    )
    np.testing.assert_allclose([layer.max() / rate for layer in layers], [0.125, 0.25], rtol=1e-2)
    word = moved["encoder"]["embeddings"]["word"].max()
    np.testing.assert_allclose(word / rate, 0.0625, rtol=1e-2)


@pytest.mark.slow
def test_a_model_of_another_task_gives_all_but_its_head(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here of another kind of pair with three labels, exported; its tokenizer comes with it."""
    first = task_config(folder, mesh__data=-1, task__epochs=0.1)
    (tmp_path / "mnli").mkdir()
    names = ("train", "dev_matched", "dev_mismatched")
    header = "index\tsentence1\tsentence2\tgold_label\n"
    rows = [f"{i}\tdal bel\tdal\t{label}\n" for i, label in enumerate(("neutral", "entailment"))]
    for name in names:
        (tmp_path / f"mnli/{name}.tsv").write_text(header + "".join(rows))
    mnli = first.replace({"task.name": "mnli", "task.data": str(tmp_path / "mnli")})
    finetune(mnli, tmp_path / "first")
    (*_, evaluated) = read_records(tmp_path / "first", "eval")
    assert {"task/accuracy", "task/accuracy_mismatched"} <= evaluated.keys()
    bert_jax.export(tmp_path / "first", tmp_path / "exported")
    other = tmp_path / "other.txt"
    other.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nbal\n")
    wrong = {"init": str(tmp_path / "exported"), "task.tokenizer": str(other)}
    with pytest.raises(UserError, match=r"other\.txt is not the tokenizer of config\.init="):
        finetune(first.replace(wrong), tmp_path / "wrong")
    changes = {"init": str(tmp_path / "exported"), "task.tokenizer": ""}
    finetune(first.replace(changes), tmp_path / "second")
    assert "new, with random values: sequence-classification head\n" in capsys.readouterr().out
    finetune(mnli.replace(changes), tmp_path / "third")
    assert f"starts from {tmp_path / 'exported'}\n" in capsys.readouterr().out
    words = ["evaluate", f"--workdir={tmp_path / 'third'}"]
    assert cli.main(words) == 1
    assert "fine-tuned for mnli; its results are in" in capsys.readouterr().err


TABLE = "subject\tspam\nbuy now\tyes\nhello you\tno\n"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task.name": ""}, "config.task.name is empty; name the task"),
        ({"task.name": "rta"}, "config.task.name='rta'; did you mean rte?"),
        ({"task.data": ""}, "config.task.data is empty"),
        ({"task.data": "nowhere"}, "nowhere: no such folder; give the one that has train.tsv"),
        ({"task.label": "y"}, "config.task.label=y has no effect for rte"),
        ({"task.name": "classification"}, ": a folder; give a .tsv, .csv, .jsonl or .parquet file"),
        ({"task.tokenizer": ""}, "config.init is empty; name the model to fine-tune"),
        ({"init": "nowhere"}, "config.init=nowhere: no such folder"),
        ({"init": "hf:a/b/c"}, "hf:a/b/c: not a model's name"),
        ({"phases[0].seq_length": 4}, r"config.phases[0].seq_length=4; give 5 or more"),
        ({"task.name": "classification", "task.data": "TABLE"}, "no column 'text'"),
        ({"phases[0].steps": 4}, "steps=4 has no effect: config.task.epochs=3.0 makes it 30"),
        (
            {"phases[0].steps": 4, "task.most_steps": 7},
            "steps=4 has no effect: config.task.most_steps=7 makes it 7; set config.task.most",
        ),
        (
            {"task.fewest_steps": 9, "task.most_steps": 8},
            "config.task.fewest_steps=9 exceeds config.task.most_steps=8",
        ),
        ({"optimizer.warmup_steps": 4}, "no effect: config.task.warmup_share=0.1 makes it 3; set"),
        ({"evaluation.every_steps": 4}, "no effect: config.task.evaluations=1 makes it 10; set"),
        (
            {"task.name": "regression", "task.data": "TABLE", "task.text": "subject",
             "task.label": "spam"},
            "TABLE: row 2: score 'yes' is not a number",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(folder: Path, tmp_path: Path, changes, message: str) -> None:
    table = tmp_path / "table.tsv"
    table.write_text(TABLE)
    changes = {key: str(table) if value == "TABLE" else value for key, value in changes.items()}
    config = task_config(folder).replace(changes)
    with pytest.raises(UserError, match=re.escape(message.replace("TABLE", str(table)))) as raised:
        finetune(config, tmp_path / "run")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("limits", "steps", "every"),
    [
        ({}, 30, 10),
        ({"fewest_steps": 30, "most_steps": 30}, 30, 10),
        ({"fewest_steps": 31}, 31, 11),  # three evaluations, the last one at the end
        ({"fewest_steps": 100}, 100, 34),
        ({"most_steps": 29}, 29, 10),
        ({"most_steps": 4}, 4, 2),
    ],
)
def test_steps_follow_from_epochs_within_limits(folder: Path, limits, steps, every) -> None:
    config = task_config(folder, **{f"task__{key}": value for key, value in limits.items()})
    made = open_task(config, Workdir.open("/nowhere/run")).configured(config)
    assert (made.phases[0].steps, made.evaluation.every_steps) == (steps, every)
    assert made.optimizer.warmup_steps == steps // 10


@pytest.mark.parametrize("limits", [{}, {"task__fewest_steps": 90}, {"task__most_steps": 7}])
def test_the_steps_that_a_run_has_are_taken_again(folder: Path, limits) -> None:
    """As `--config=RUN/config.json` gives them."""
    config = task_config(folder, **limits)
    data = open_task(config, Workdir.open("/nowhere/run"))
    made = data.configured(config)
    assert data.configured(made.with_model(config.model)) == made


@pytest.mark.slow
def test_a_table_of_any_file_is_a_task(folder: Path, tmp_path: Path) -> None:
    """Its labels are those in the file; a tenth of its rows is held out."""
    lines = (folder / "train.tsv").read_text().splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    table = tmp_path / "table.jsonl"
    keys = ("body", "answer")
    text = (json.dumps(dict(zip(keys, (row[1], row[3]), strict=True))) for row in rows)
    table.write_text("\n".join(text) + "\n")
    names = {"task__name": "classification", "task__text": "body", "task__label": "answer"}
    config = task_config(folder, mesh__data=-1, task__epochs=1.0, **names)
    config = config.replace("task.data", str(table))
    data = finetune(config, tmp_path / "run/seed-0")
    assert data.labels == ("entailment", "not_entailment")
    assert (len(data.train.labels), len(data.held_out.labels)) == (TRAIN - 7, 7)
    finetune(dataclasses.replace(config, seed=1), tmp_path / "run/seed-1")
    runs = [
        run_result(dataclasses.replace(config, seed=seed), tmp_path / f"run/seed-{seed}")
        for seed in (0, 1)
    ]
    write_results(tmp_path / "run", config, data, runs)
    found = json.loads((tmp_path / "run/results.json").read_text())
    accuracies = [run["accuracy"] for run in found["runs"]]
    assert found["median"]["accuracy"] == pytest.approx(sum(accuracies) / 2)
    assert found["range"]["accuracy"] == [min(accuracies), max(accuracies)]
    assert set(found["baselines"]) == {"majority", "bag of words"}
    new = tmp_path / "new.csv"
    new.write_text('body,other\n"dal, bel",x\n,y\n')
    out = tmp_path / "out.tsv"
    model = f"--model={tmp_path / 'run'}"  # of its seeds, the best
    assert cli.main(["predict", model, f"--input={new}", f"--out={out}"]) == 0
    header, *said = out.read_text().splitlines()
    assert header == "index\tprediction\tprobability"
    assert [line.split("\t")[0] for line in said] == ["0", "1"]
    assert {line.split("\t")[1] for line in said} <= set(data.labels)
    assert all(1 / len(data.labels) <= float(line.split("\t")[2]) <= 1 for line in said)
    assert find_model(f"{tmp_path / 'run'}@1")[0].endswith("@1")
    with pytest.raises(UserError, match=r"run: not the workdir .*; did you mean .*run/seed-0\?"):
        description.read_description(Workdir.open(tmp_path / "run"))
