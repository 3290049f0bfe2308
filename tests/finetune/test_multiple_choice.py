"""Multiple choice: SWAG's files and tables, their errors, and a run from files to export."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_task import DEV, TRAIN, task_config, write_task

import bert_jax
from bert_jax import cli
from bert_jax.config.task_settings import TaskConfig
from bert_jax.errors import UserError
from bert_jax.finetune.check_task import check_task
from bert_jax.finetune.tasks.baselines import choice_by_words, most_shared_words
from bert_jax.finetune.tasks.multiple_choice import MULTIPLE_CHOICE

TABLE = "q\ta\tb\tc\tanswer\nWho?\tdal\tbel\tfim\tb\nWhy?\tgan\t\tdor\t2\n"
NAMED = {"text": "q", "choices": "a, b,c", "label": "answer"}


def task(path: Path, **changes: str) -> TaskConfig:
    return TaskConfig(name="multiple_choice", data=str(path), **changes)


def test_the_columns_of_swag_are_known(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    train, held_out = MULTIPLE_CHOICE.read(task(folder))
    assert (len(train.examples), len(held_out.examples)) == (TRAIN, DEV)
    assert train.labels == ("ending0", "ending1", "ending2", "ending3")
    row = (folder / "train.csv").read_text().splitlines()[1].replace('"', "").split(",")
    first = train.examples[0]
    assert (first.id, first.context, first.stem, first.label) == ("0", row[4], row[5], int(row[11]))
    assert first.pairs == [(row[4], f"{row[5]} {ending}") for ending in row[7:11]]


def test_a_table_has_columns_of_any_number_of_choices(tmp_path: Path) -> None:
    """A label is the number of a choice, or the name of its column."""
    path = tmp_path / "table.tsv"
    path.write_text(TABLE)
    examples = MULTIPLE_CHOICE.read(task(path, held_out=str(path), **NAMED))[0]
    assert [one.label for one in examples.examples] == [1, 2]
    assert examples.examples[1].pairs == [("Why?", "gan"), ("Why?", ""), ("Why?", "dor")]
    lines = tmp_path / "table.jsonl"
    rows = ({"q": "Who?", "a": "x", "b": "y", "n": i} for i in (0, 1))
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = {"text": "q", "choices": "a,b", "label": "n"}
    new = MULTIPLE_CHOICE.read_new(task(lines, **named), str(lines), "test").examples
    assert [(one.choices, one.label) for one in new] == [(("x", "y"), None)] * 2


def test_examples_of_one_context_stay_together(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    rows = (f"c{i // 3}\tx\ty\tz\ta\n" for i in range(60))
    path.write_text("q\ta\tb\tc\tanswer\n" + "".join(rows))
    train, held_out = MULTIPLE_CHOICE.read(task(path, **NAMED))
    contexts = [{one.context for one in split.examples} for split in (train, held_out)]
    assert not contexts[0] & contexts[1]
    assert len(held_out.examples) == 6


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        (
            TABLE.replace("\t2\n", "\t3\n"),
            {},
            "row 3: label '3' is neither a number from 0 to 2",
        ),
        (TABLE.replace("\tb\n", "\t\n"), {}, "row 2: label '' is neither"),
        (
            "q\t1\t0\tanswer\nWho?\tdal\tbel\t1\n",
            {"choices": "1,0"},
            "label 1 is ambiguous: it may be the column 1 or the number",
        ),
        (TABLE, {"choices": "a,b,d"}, "no column 'd'"),
        (TABLE, {"choices": "a"}, "config.task.choices=a; give two or more columns"),
        (TABLE, {"choices": "a,b,a"}, "config.task.choices=a,b,a; give two or more columns"),
        (TABLE, {"choices": ""}, "config.task.text=q has no effect without config.task.choices"),
        (TABLE.splitlines()[0] + "\n", {}, "no examples"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, text: str, changes: dict, message: str) -> None:
    path = tmp_path / "table.tsv"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        MULTIPLE_CHOICE.read(task(path, **NAMED | changes))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_choices_are_of_no_other_kind_of_task(tmp_path: Path) -> None:
    config = task_config(tmp_path, task__choices="a,b")
    with pytest.raises(UserError, match=r"config.task.choices=a,b has no effect for rte; leave it"):
        check_task(config)


def test_words_choose_without_a_pretrained_model() -> None:
    known = [("good x", "bad y"), ("bad z", "good w")] * 9
    assert choice_by_words(known, [0, 1] * 9, [("bad", "good"), ("good", "bad")]).tolist() == [1, 0]
    assert choice_by_words([("", ""), ("", "")], [0, 1], [("", "")]).tolist() == [0]
    assert most_shared_words("Where is the ship?", ["A train.", "The ship is here."]) == 1


@pytest.mark.slow
def test_a_run_of_seeds_predicts_and_is_exported(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "task")
    config = task_config(folder, task__name="multiple_choice")
    sizes = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
        "max_position_embeddings",
    )  # fmt: skip
    model = [f"--config.model.{key}={getattr(config.model, key)}" for key in sizes]
    words = [
        "finetune", "--config=glue", "--config.task.name=multiple_choice", "--seeds=2",
        f"--config.task.data={folder}", f"--config.task.tokenizer={folder / 'tokenizer.json'}",
        "--config.phases[0].batch_size=8", "--config.phases[0].seq_length=32",
        "--config.task.epochs=0.5", "--config.compute.dtype=float32",
        "--config.model.initializer_range=0.25", f"--workdir={tmp_path / 'runs'}",
    ]  # fmt: skip
    assert cli.main([*words, *model]) == 0
    results = json.loads((tmp_path / "runs/results.json").read_text())
    assert results["metrics"] == ["accuracy"]
    assert len(results["runs"]) == 2
    assert set(results["baselines"]) == {"majority", "bag of words", "shared words"}
    out = tmp_path / "predictions.tsv"
    run = tmp_path / "runs/seed-0"
    command = ["predict", f"--model={run}", f"--input={folder}", "--split=dev", f"--out={out}"]
    assert cli.main(command) == 0
    header, *lines = out.read_text().splitlines()
    assert header == "index\tprediction\tprobability"
    found = [line.split("\t") for line in lines]
    right = [row.split(",")[11] for row in (folder / "val.csv").read_text().splitlines()[1:]]
    hits = [one[1] == label for one, label in zip(found, right, strict=True)]
    assert np.mean(hits) == pytest.approx(results["runs"][0]["accuracy"])
    assert all(0.25 <= float(one[2]) <= 1 for one in found)
    bert_jax.export(run, tmp_path / "exported")
    values = json.loads((tmp_path / "exported/config.json").read_text())
    assert values["architectures"] == ["BertForMultipleChoice"]
    assert "its multiple-choice head" in (tmp_path / "exported/README.md").read_text()
    asked = [("dal bel", ("fim", "gan", "dor")), ("bel", ("gan", "gan", "fim"))]
    chosen = bert_jax.load(tmp_path / "exported").choose(iter(asked))
    assert all(one.label in choices for one, (_, choices) in zip(chosen, asked, strict=True))
    assert all(1 / 3 <= one.probability <= 1 for one in chosen)
    with pytest.raises(UserError, match="2 and 3 choices; give all texts the same number of them"):
        bert_jax.load(tmp_path / "exported").choose([*asked, ("bel", ("gan", "fim"))])
    table, named = tmp_path / "table.tsv", ["--text=q", "--choices=a,b,c"]
    table.write_text(TABLE)
    command = ["predict", f"--model={tmp_path / 'exported'}", f"--input={table}", *named]
    assert cli.main([*command, f"--out={tmp_path / 'of_table.tsv'}"]) == 0
    assert len((tmp_path / "of_table.tsv").read_text().splitlines()) == 3
