"""Forms of tables: quotes, delimiters, blank lines and compression."""

from pathlib import Path

import pytest

from bert_jax.config.task_settings import TaskConfig
from bert_jax.errors import UserError
from bert_jax.finetune.tasks import conll, squad, table
from bert_jax.finetune.tasks.table import Columns
from bert_jax.finetune.tasks.task_kinds import KINDS


def test_rows_of_one_label_are_refused(tmp_path: Path) -> None:
    path = made(tmp_path, "a.tsv", "text\tlabel\n" + "".join(f"A {i}\tx\n" for i in range(9)))
    for held_out in ("", str(path)):
        task = TaskConfig(name="classification", data=str(path), held_out=held_out)
        with pytest.raises(UserError, match=r"a.tsv: all rows have the label 'x'; give rows with"):
            KINDS["classification"].read(task)


def test_a_class_that_may_stand_for_none_is_said(tmp_path: Path) -> None:
    columns = Columns("text", label="label")
    path = made(tmp_path, "a.tsv", "text\tlabel\nA\t0\nB\t1\nC\t-1\n")
    (note,) = table.read_table(path, columns).notes
    assert note == "label -1 is a class; leave its rows out if it stands for none"
    path = made(tmp_path, "b.tsv", "text\tlabel\nA\t2\nB\t1\nC\t-1\n")
    assert table.read_table(path, columns).notes == []


def made(tmp_path: Path, name: str, text: str) -> Path:
    (tmp_path / name).write_bytes(text.encode())
    return tmp_path / name


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ('text\tlabel\n"He said ""no""."\tx\n"Oh"\ty\n', ['He said "no".', '"Oh"']),
        ('text\tlabel\n"Two\nlines."\tx\n"A\ttab."\ty\n', ["Two\nlines.", "A\ttab."]),
        ('"text"\t"label"\n"Oh, well."\t"x"\n"So."\t"y"\n', ["Oh, well.", "So."]),
        ('text\tlabel\n"Oh, well.\tx\n\nSo it ended."\ty\n', ['"Oh, well.', 'So it ended."']),
    ],
)
def test_a_tsv_is_read_as_pandas_writes_it(text: str, texts: list[str], tmp_path: Path) -> None:
    path = made(tmp_path, "a.tsv", text)
    examples = table.read_table(path, Columns("text", label="label"))
    assert [one.texts[0] for one in examples.examples] == texts
    assert examples.labels == ("x", "y")
    assert table.read_titles(path) == ["text", "label"]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt"])
def test_a_last_blank_line_of_a_column_is_no_text(name: str, tmp_path: Path) -> None:
    path = made(tmp_path, name, "text\nA\n\nB\n\n\n")
    examples = table.read_table(path, Columns("text"))
    assert [(one.texts[0], one.row) for one in examples.examples] == [("A", 2), ("", 3), ("B", 4)]
    assert examples.dropped == {"blank row": 2}


def test_an_empty_value_in_quotes_is_a_text(tmp_path: Path) -> None:
    path = made(tmp_path, "a.csv", 'text\nA\n""\n')  # as pandas writes it
    assert len(table.read_table(path, Columns("text")).examples) == 2


@pytest.mark.parametrize(
    ("row", "number"), [('hello, "x"', 3), ('"Two\nlines.", "x"', 3), (' "a, b",x', 3)]
)
def test_a_quote_after_white_space_is_refused(row: str, number: int, tmp_path: Path) -> None:
    path = made(tmp_path, "a.csv", f'text,label\n"a, ""b""",x\n{row}\n')
    with pytest.raises(UserError, match=rf"a.csv: row {number}: a stray quote \(.*; remove the w"):
        table.read_table(path, Columns("text", label="label"))
    path = made(tmp_path, "b.csv", 'text,label\n" ""b"" ",x\n')
    (example,) = table.read_table(path, Columns("text", label="label")).examples
    assert example.texts == (' "b" ',)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.csv", 'text;"label"\nA;x\n', "separated by semicolons, not by commas; write commas"),
        ("a.csv", "text\tlabel\nA\tx\n", "separated by tabs, not by commas; rename it to .tsv"),
        ("a.tsv", "text,label\nA,x\n", "separated by commas, not by tabs; rename it to .csv"),
        ("a.csv.gz", "", "compressed; decompress it first"),
        ("a.jsonl.zst", "", "compressed; decompress it first"),
    ],
)
def test_another_form_of_a_table_is_named(
    name: str, text: str, problem: str, tmp_path: Path
) -> None:
    path = made(tmp_path, name, text)
    with pytest.raises(UserError, match=f"{name}: (its columns are )?{problem}"):
        table.read_table(path, Columns("text", label="label"))


def test_compressed_tags_and_questions_are_named(tmp_path: Path) -> None:
    for read in (conll.read_sentences, squad.read_questions):
        with pytest.raises(UserError, match=r"train.gz: compressed; decompress it first"):
            read(made(tmp_path, "train.gz", ""))
