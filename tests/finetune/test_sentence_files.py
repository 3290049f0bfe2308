"""Files of pairs that are read wrongly, or in part, unless they are refused."""

import json
from pathlib import Path

import pytest
from small_task import task_config, write_pairs

from bert_jax.config.task_settings import TaskConfig
from bert_jax.errors import UserError
from bert_jax.finetune.task_data import open_task
from bert_jax.finetune.tasks.table import Columns, read_table
from bert_jax.finetune.tasks.task_kinds import KINDS
from bert_jax.workdir.layout import Workdir

PAIRS = "anchor\tpositive\n" + "".join(f"q{i}\tp{i}\n" for i in range(20))
SCORES = "sentence1\tsentence2\tscore\ndal\tbel\t0.5\nfim\tgan\t0.5\n"


def read(path: Path, name: str = "sentence_pairs", **changes: object) -> tuple:
    task = TaskConfig(name=name, data=str(path), **changes)  # type: ignore[arg-type]
    return KINDS[name].read(task)


def message_of(path: Path, name: str = "sentence_pairs", **changes: object) -> str:
    with pytest.raises(UserError) as raised:
        read(path, name, **changes)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_negative_that_only_later_lines_have_is_not_dropped(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    rows = [{"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "d", "negative": "e"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "row 1: no key 'negative'" in message_of(path)


def test_a_folder_with_two_files_of_a_split_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(PAIRS.replace("\t", ","))
    train, held_out = read(tmp_path)  # without a dev file, a tenth is held out
    assert (len(train.examples), len(held_out.examples)) == (18, 2)
    (tmp_path / "train.jsonl").write_text('{"anchor": "a", "positive": "b"}\n')
    assert "train.csv and train.jsonl may both be its train split" in message_of(tmp_path)
    (tmp_path / "train.jsonl").unlink()
    for name in ("dev", "validation"):
        (tmp_path / f"{name}.tsv").write_text(PAIRS)
    assert "dev.tsv and validation.tsv may both be its dev split" in message_of(tmp_path)
    with pytest.raises(UserError, match=r"may both be its dev split"):
        KINDS["sentence_pairs"].read_new(TaskConfig(), str(tmp_path), "dev")


def test_pairs_of_one_positive_cannot_be_divided(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("anchor\tpositive\na\tb\nc\tb\n")
    assert "2 examples of one text, which are held out together; give more" in message_of(path)


def test_cosent_needs_different_scores(tmp_path: Path) -> None:
    path = tmp_path / "scores.tsv"
    path.write_text(SCORES)
    assert "every score is 0.5, and CoSENT compares" in message_of(
        path, "scored_pairs", loss="cosent"
    )
    read(path, "scored_pairs")


@pytest.mark.parametrize("key", ["query_prompt", "passage_prompt"])
def test_a_prompt_that_leaves_no_room_for_a_text_is_refused(tmp_path: Path, key: str) -> None:
    path = write_pairs(tmp_path) / "pairs.tsv"
    changes = {"task__name": "sentence_pairs", "task__data": str(path)}
    for words, refused in ((29, False), (30, True)):  # of 32 tokens, two are special
        changes[f"task__{key}"] = "bal " * words
        config = task_config(tmp_path, **changes)
        if not refused:
            open_task(config, Workdir.open("/nowhere/run"))
            continue
        with pytest.raises(UserError, match=rf"task\.{key} has 30 tokens, but phases\[0\]"):
            open_task(config, Workdir.open("/nowhere/run"))


def test_values_of_parquet_that_json_has_not(tmp_path: Path) -> None:
    """Decimals are numbers; bytes, nulls and two columns of one name are refused, by row."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "table.parquet"
    scores = arrow.array([0.25, 0.5, 1.0]).cast(arrow.decimal128(5, 2))
    first, second = arrow.array(["a", "b", "c"]), arrow.array(["d", "e", "f"])
    names = ["sentence1", "sentence2", "score"]
    parquet.write_table(arrow.table([first, second, scores], names=names), path)
    examples = [one for split in read(path, "scored_pairs") for one in split.examples]
    assert sorted(one.label for one in examples) == [0.25, 0.5, 1.0]
    parquet.write_table(arrow.table([first, second, second], names=[*names[:2], names[0]]), path)
    assert "2 columns are named 'sentence1'" in message_of(path, "scored_pairs")
    bad = arrow.array([b"a", b"b", b"c"])
    parquet.write_table(arrow.table([bad, second, scores], names=names), path)
    assert "row 1: 'sentence1' should be text or a number, not" in message_of(path, "scored_pairs")


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        (["yes", "-", "no"], ("no", "yes")),
        (["+", "-", "+"], ("+", "-")),
        (["2", "-1", "0", "1"], ("0", "1", "2")),
        (["1", "-1", "0"], ("-1", "0", "1")),
    ],
)
def test_rows_without_a_gold_label_are_left_out(
    typed: list[str], names: tuple[str, ...], tmp_path: Path
) -> None:
    """Also in a file whose labels are known."""
    rows = "".join(f"a\tb\t{label}\n" for label in typed)
    path = tmp_path / "a.tsv"
    path.write_text(f"sentence1\tsentence2\tlabel\n{rows}")
    columns = Columns("sentence1", "sentence2", label="label")
    task = TaskConfig(name="labeled_pairs", data=str(path), held_out=str(path))
    found = [*KINDS["labeled_pairs"].read(task), read_table(path, columns)]
    found.append(read_table(path, columns, labels=names))
    left = len(typed) - len(names) if len(set(typed)) > len(names) else 0
    for examples in found:
        assert examples.labels == names
        assert len(examples.examples) == len(typed) - left
        assert examples.dropped == ({"no gold label": left} if left else {})
