"""GLUE as TensorFlow Datasets prepares it: the examples of the original files, and bad folders."""

import sys
from pathlib import Path

import prepared_dataset
import pytest
from small_task import task_config, write_task

from bert_jax.config.task_settings import TaskConfig
from bert_jax.errors import UserError
from bert_jax.finetune.task_data import open_task
from bert_jax.finetune.tasks.glue import TASKS, dev_splits, read_dev, read_split
from bert_jax.finetune.tasks.labeled_examples import Examples
from bert_jax.finetune.tasks.task_kinds import kind_of
from bert_jax.workdir.layout import Workdir

# Features of the texts and names of the labels, in their order, as the dataset `glue` has them.
PREPARED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cola": (("sentence",), ("unacceptable", "acceptable")),
    "sst2": (("sentence",), ("negative", "positive")),
    "mrpc": (("sentence1", "sentence2"), ("not_equivalent", "equivalent")),
    "stsb": (("sentence1", "sentence2"), ()),
    "qqp": (("question1", "question2"), ("not_duplicate", "duplicate")),
    "mnli": (("premise", "hypothesis"), ("entailment", "neutral", "contradiction")),
    "qnli": (("question", "sentence"), ("entailment", "not_entailment")),
    "rte": (("sentence1", "sentence2"), ("entailment", "not_entailment")),
    "wnli": (("sentence1", "sentence2"), ("not_entailment", "entailment")),
}
Row = tuple[tuple[str, ...], str | float]  # the texts and the label


def rows_of(task: str, split: str) -> list[Row]:
    """Made-up examples; the scores are no multiples of a power of two."""
    features, names = PREPARED[task]
    return [
        (
            tuple(f'{split} "{i}", caf\u00e9 {name} .' for name in features),
            names[i % len(names)] if names else (3.8, 0.0, 2.533, 5.0, 4.2)[i],
        )
        for i in range(5)
    ]


def write_originals(folder: Path, task: str) -> Path:
    """Writes train, dev and test in the form in which GLUE distributes them."""
    folder.mkdir()
    is_cola, values = task == "cola", TASKS[task].values or TASKS[task].labels
    for split in ("train", *dev_splits(task)):
        header = [] if is_cola else ["\t".join(("index", *TASKS[task].texts, TASKS[task].label))]
        lines = []
        for i, (texts, label) in enumerate(rows_of(task, split)):
            said = values[PREPARED[task][1].index(label)] if isinstance(label, str) else str(label)
            fields = ("gj04", said, "", *texts) if is_cola else (str(i), *texts, said)
            lines.append("\t".join(fields))
        (folder / f"{split}.tsv").write_text("\n".join(header + lines) + "\n")
    return folder


def write_prepared(
    folder: Path, task: str, *, configuration: str = "", names: tuple[str, ...] = (), **options
) -> Path:
    """Writes the same splits, and a test split, in another order of the rows, in two shards."""
    features, known = PREPARED[task]
    names = names or known
    splits: dict[str, list[prepared_dataset.Rows]] = {}
    for split in ("train", *dev_splits(task), "test"):
        rows = [
            dict(zip(features, texts, strict=True))
            | {"label": -1 if split == "test" else label, "idx": i}
            for i, (texts, label) in enumerate(rows_of(task, split))
        ]
        shards = [[rows[i] for i in order] for order in ((3, 0), (4, 1, 2))]
        splits[split.replace("dev", "validation")] = shards
    version = folder / "glue" / (configuration or task) / "2.0.0"
    prepared_dataset.write(
        version,
        splits,
        name="glue",
        configuration=configuration or task,
        numbers=("idx",),
        classes={"label": names} if names else {},
        floats=() if names else ("label",),
        **options,
    )
    return version


def content(examples: Examples) -> tuple:
    found = [(e.id, e.texts, e.label) for e in examples.examples]
    return examples.kind, examples.labels, found, examples.parts, examples.dropped


@pytest.mark.parametrize("task", PREPARED)
def test_the_examples_are_those_of_the_original_files(task: str, tmp_path: Path) -> None:
    before = "tensorflow" in sys.modules  # of another test
    originals, prepared = write_originals(tmp_path / "tsv", task), write_prepared(tmp_path, task)
    train, dev = read_split(task, prepared, "train"), read_dev(task, prepared)
    assert content(train) == content(read_split(task, originals, "train"))
    assert content(dev) == content(read_dev(task, originals))
    assert train.path.split(" + ") == [
        f"{prepared}/glue-train.array_record-0000{i}-of-00002" for i in range(2)
    ]
    assert ("tensorflow" in sys.modules) == before


def test_labels_are_known_by_name(tmp_path: Path) -> None:
    prepared = write_prepared(tmp_path, "rte", names=("not_entailment", "entailment"))
    originals = write_originals(tmp_path / "tsv", "rte")
    assert content(read_dev("rte", prepared)) == content(read_dev("rte", originals))


def test_a_run_has_the_data_of_one_from_the_original_files(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "words")
    originals = write_originals(tmp_path / "tsv", "rte")
    write_prepared(tmp_path, "rte")
    first, second = (
        open_task(task_config(folder).replace({"task.data": str(data)}), Workdir.open("/no/run"))
        for data in (originals, tmp_path / "glue/rte")
    )
    assert first.train.digest == second.train.digest != first.held_out.digest
    assert first.held_out.digest == second.held_out.digest


@pytest.mark.parametrize("task", ["sst2", "stsb"])
def test_a_test_split_to_predict_has_no_labels(task: str, tmp_path: Path) -> None:
    config, folder = TaskConfig(name=task), write_prepared(tmp_path, task)
    examples = kind_of(config).read_new(config, str(folder), "test").examples
    assert [(e.id, e.label) for e in examples] == [(str(i), None) for i in range(5)]
    assert [e.texts for e in examples] == [texts for texts, _ in rows_of(task, "test")]


def test_the_folder_of_all_tasks_has_each_and_the_diagnostic_split(tmp_path: Path) -> None:
    write_prepared(tmp_path, "rte")
    write_prepared(tmp_path, "mnli")
    write_prepared(tmp_path, "mnli", configuration="ax")
    glue = tmp_path / "glue"
    assert content(read_split("rte", glue, "dev")) == content(
        read_split("rte", glue / "rte/2.0.0", "dev")
    )
    found = [(e.texts, e.label) for e in read_split("mnli", glue, "diagnostic").examples]
    assert found == [(texts, None) for texts, _ in rows_of("mnli", "test")]
    assert error_of("sst2", glue, "dev").startswith(f"{glue}: has 3 configurations (ax, mnli, rte)")


def error_of(task: str, folder: Path, split: str = "train") -> str:
    with pytest.raises(UserError) as caught:
        read_split(task, folder, split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_that_is_not_of_the_task_is_one_line(tmp_path: Path) -> None:
    folder = write_prepared(tmp_path, "rte")
    assert error_of("wnli", folder) == (
        f"{folder}: the dataset is glue/rte; the train split of wnli is in glue/wnli, give its "
        "folder"
    )
    matched = write_prepared(tmp_path, "mnli", configuration="mnli_matched")
    message = "the dataset is glue/mnli_matched; the train split of mnli is in glue/mnli,"
    assert message in error_of("mnli", matched)
    assert "rte has no split 'validation'; valid: dev, test, train" in error_of(
        "rte", folder, "validation"
    )
    named = write_prepared(tmp_path / "named", "rte", names=("no", *PREPARED["rte"][1]))
    assert error_of("rte", named) == (
        f"{named}: its labels (label.labels.txt) are no, entailment, not_entailment, not "
        "entailment, not_entailment; copy it again, or prepare it again with tfds build glue/rte"
    )
    other = tmp_path / "other/1.0.0"
    rows = [{"sentence1": "A", "label": "no", "idx": 0}]
    prepared_dataset.write(
        other, {"train": [rows]}, name="glue", configuration="rte", numbers=("idx",)
    )
    assert f"{other}: no feature 'sentence2'; did you mean sentence1?" in error_of("rte", other)
    assert f"{other}: no split 'validation'; valid: train" in error_of("rte", other, "dev")


def test_what_cannot_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tfrecord = write_prepared(tmp_path / "tfrecord", "sst2", file_format="tfrecord")
    assert error_of("sst2", tfrecord) == (
        f"{tfrecord}: prepared as tfrecord, which needs TensorFlow; prepare it again with "
        "tfds build glue/sst2 --file_format=array_record"
    )
    folder = write_prepared(tmp_path, "sst2")
    shard = folder / "glue-train.array_record-00001-of-00002"
    data = shard.read_bytes()
    shard.write_bytes(data[: len(data) // 2])
    assert error_of("sst2", folder) == (
        f"{shard}: cannot be read (RuntimeError); copy the dataset again"
    )
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    assert error_of("sst2", folder).endswith("is not installed; pip install 'bert-jax[tfds]'")


def test_a_score_outside_the_scale_is_named_with_its_row(tmp_path: Path) -> None:
    rows = [{"sentence1": "A", "sentence2": "B", "label": 5.5, "idx": 0}]
    options = {"name": "glue", "configuration": "stsb", "numbers": ("idx",), "floats": ("label",)}
    prepared_dataset.write(tmp_path / "2.0.0", {"train": [rows]}, **options)
    message = f"{tmp_path}/2.0.0: train: row 1: score '5.5' is not a number from 0 to 5"
    assert error_of("stsb", tmp_path) == message
