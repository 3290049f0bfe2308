"""GLUE's files in the forms in which they are distributed, and what is wrong in them."""

from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.finetune.tasks.glue import TASKS, read_dev, read_split

MNLI_COLUMNS = (
    "index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse",
    "sentence1_parse", "sentence2_parse", "sentence1", "sentence2",
)  # fmt: skip


def write(path: Path, *rows: str, start: str = "", end: str = "\n") -> None:
    """rows: with `|` for a tab; start: before the first row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(row.replace("|", "\t") + end for row in rows)
    path.write_bytes((start + text).encode())


def found(task: str, folder: Path, split: str) -> list[tuple]:
    return [(e.id, *e.texts, e.label) for e in read_split(task, folder, split).examples]


def test_the_table_has_glues_nine_tasks_with_their_published_metrics() -> None:
    assert {name: task.metrics for name, task in TASKS.items()} == {
        "cola": ("matthews", "accuracy"),
        "sst2": ("accuracy",),
        "mrpc": ("f1", "accuracy"),
        "stsb": ("pearson", "spearman"),
        "qqp": ("f1", "accuracy"),
        "mnli": ("accuracy",),
        "qnli": ("accuracy",),
        "rte": ("accuracy",),
        "wnli": ("accuracy",),
    }


@pytest.mark.parametrize(
    ("task", "labels"),
    [
        ("cola", ("unacceptable", "acceptable")),
        ("sst2", ("negative", "positive")),
        ("mrpc", ("not_equivalent", "equivalent")),
        ("stsb", ("score",)),
        ("qqp", ("not_duplicate", "duplicate")),
        ("mnli", ("entailment", "neutral", "contradiction")),
        ("qnli", ("entailment", "not_entailment")),
        ("rte", ("entailment", "not_entailment")),
        ("wnli", ("not_entailment", "entailment")),
    ],
)
def test_labels_have_the_ids_of_glue(task: str, labels: tuple[str, ...]) -> None:
    assert TASKS[task].labels == labels


def test_cola_as_released_has_two_dev_files_and_no_header(tmp_path: Path) -> None:
    write(tmp_path / "in_domain_train.tsv", "gj04|1||A train.", "gj04|0|*|One train.")
    write(tmp_path / "in_domain_dev.tsv", 'gj04|0|*|He "said.')
    write(tmp_path / "out_of_domain_dev.tsv", "clc95|1||Guess who.", end="")
    train, dev = read_split("cola", tmp_path, "train"), read_split("cola", tmp_path, "dev")
    assert [(e.id, e.texts, e.label, e.row) for e in train.examples] == [
        ("0", ("A train.",), 1, 1),
        ("1", ("One train.",), 0, 2),
    ]
    assert [(e.id, e.texts, e.label, e.row) for e in dev.examples] == [
        ("0", ('He "said.',), 0, 1),
        ("1", ("Guess who.",), 1, 1),
    ]
    assert dev.path.endswith("out_of_domain_dev.tsv")
    assert "in_domain_dev.tsv" in dev.path


def test_cola_of_glue_has_a_header_in_its_test_file_only(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "gj04|1||A train.")
    write(tmp_path / "test.tsv", "index|sentence", "7|Bill whistled.")
    assert found("cola", tmp_path, "train") == [("0", "A train.", 1)]
    assert found("cola", tmp_path, "test") == [("7", "Bill whistled.", None)]


def test_mrpc_as_released_has_a_bom_and_its_dev_split_in_the_training_file(tmp_path: Path) -> None:
    header = "Quality|#1 ID|#2 ID|#1 String|#2 String"
    rows = ['1|10|11|Say "it.|He said.', "0|20|21|A|B", "1|30|31|C|D"]
    write(tmp_path / "msr_paraphrase_train.txt", header, *rows, start="\ufeff", end="\r\n")
    write(tmp_path / "msr_paraphrase_test.txt", header, "0|1|2|E|F", start="\ufeff")
    with pytest.raises(UserError, match=r"copy GLUE's dev_ids.tsv or mrpc_dev_ids.tsv there"):
        read_split("mrpc", tmp_path, "train")
    write(tmp_path / "dev_ids.tsv", "20|21")
    assert found("mrpc", tmp_path, "train") == [
        ("0", 'Say "it.', "He said.", 1),
        ("1", "C", "D", 1),
    ]
    assert found("mrpc", tmp_path, "dev") == [("0", "A", "B", 0)]
    assert found("mrpc", tmp_path, "test") == [("0", "E", "F", 0)]
    assert read_split("mrpc", tmp_path, "train").dropped == {"in the dev split": 1}
    assert read_split("mrpc", tmp_path, "dev").dropped == {"in the train split": 2}


def test_stsb_is_read_with_a_header_and_as_released_without_one(tmp_path: Path) -> None:
    header = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2|score"
    write(tmp_path / "train.tsv", header, "0|news|f|2012|1|none|none|A plane.|A bird.|4.250")
    write(tmp_path / "test.tsv", header.removesuffix("|score"), "0|news|f|2012|1|none|none|A|B")
    released = "main-captions|MSRvid|2012test|0001|5.000|A plane.|A bird."
    write(tmp_path / "sts-dev.csv", released, f"{released}|a source|another")
    assert found("stsb", tmp_path, "train") == [("0", "A plane.", "A bird.", 4.25)]
    assert found("stsb", tmp_path, "test") == [("0", "A", "B", None)]
    assert found("stsb", tmp_path, "dev") == [
        ("0", "A plane.", "A bird.", 5.0),
        ("1", "A plane.", "A bird.", 5.0),
    ]
    write(tmp_path / "train.tsv", header, "0|news|f|2012|1|none|none|A|B|5.5")
    with pytest.raises(UserError, match=r"row 2: score '5.5' is not a number from 0 to 5$"):
        read_split("stsb", tmp_path, "train")


def test_broken_rows_of_qqp_are_counted(tmp_path: Path) -> None:
    header = "id|qid1|qid2|question1|question2|is_duplicate"
    write(tmp_path / "train.tsv", header, "5|1|2|Why?|How?|0", "6|3|4|Is this", "a row?|No.|1")
    examples = read_split("qqp", tmp_path, "train")
    assert [(e.id, e.label) for e in examples.examples] == [("5", 0)]
    assert examples.dropped == {"broken row": 2}


def test_mnli_has_two_dev_sets_and_rows_without_a_gold_label(tmp_path: Path) -> None:
    header = "|".join((*MNLI_COLUMNS, *(f"label{i}" for i in range(1, 6)), "gold_label"))
    row = "|".join(["{0}", *["x"] * 7, "A man.", "A person.", *["neutral"] * 5, "{1}"])
    made = [row.format(0, "entailment"), row.format(1, "-"), row.format(2, "contradiction")]
    for split in ("dev_matched", "dev_mismatched"):
        write(tmp_path / f"{split}.tsv", header, *made)
        examples = read_split("mnli", tmp_path, split)
        assert [(e.id, e.label, e.row) for e in examples.examples] == [("0", 0, 2), ("2", 2, 4)]
        assert examples.dropped == {'gold_label is "-"': 1}
    write(tmp_path / "test_matched.tsv", "|".join(MNLI_COLUMNS), row[: row.index("|neutral")])
    both = read_dev("mnli", tmp_path)
    assert list(both.parts.items()) == [("", 2), ("_mismatched", 2)]
    assert [(e.id, e.row) for e in both.examples] == [("0", 2), ("2", 4)] * 2
    assert both.dropped == {'gold_label is "-"': 2}
    assert both.path.endswith("dev_mismatched.tsv")
    assert [e.label for e in read_split("mnli", tmp_path, "test_matched").examples] == [None]
    write(tmp_path / "diagnostic.tsv", "index|sentence1|sentence2", "0|The cat.|The dog.")
    assert found("mnli", tmp_path, "diagnostic") == [("0", "The cat.", "The dog.", None)]
    with pytest.raises(UserError, match="mnli has no split 'dev'; valid: dev_matched"):
        read_split("mnli", tmp_path, "dev")


@pytest.mark.parametrize(
    ("task", "header", "row", "expected"),
    [
        ("sst2", "sentence|label", "a charming journey . |1", ("0", "a charming journey . ", 1)),
        (
            "qnli",
            "index|question|sentence|label",
            "3|Who?|He.|not_entailment",
            ("3", "Who?", "He.", 1),
        ),
        ("rte", "index|sentence1|sentence2|label", "3|A|B|entailment", ("3", "A", "B", 0)),
        ("wnli", "index|sentence1|sentence2|label", "3|A|B|1", ("3", "A", "B", 1)),
    ],
)
def test_tasks_with_a_header(
    task: str, header: str, row: str, expected: tuple, tmp_path: Path
) -> None:
    write(tmp_path / "dev.tsv", header, row)
    assert found(task, tmp_path, "dev") == [expected]


HEADERS = {
    "cola": "index|sentence|label",
    "sst2": "index|sentence|label",
    "mrpc": "index|#1 ID|#2 ID|#1 String|#2 String|Quality",
    "stsb": "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2|score",
    "qqp": "id|question1|question2|is_duplicate",
    "mnli": "|".join((*MNLI_COLUMNS, "gold_label")),
    "qnli": "index|question|sentence|label",
    "rte": "index|sentence1|sentence2|label",
    "wnli": "index|sentence1|sentence2|label",
}


@pytest.mark.parametrize("task", TASKS)
def test_a_damaged_name_does_not_make_a_file_one_without_labels(task: str, tmp_path: Path) -> None:
    """Nor one whose ids are numbers of rows."""
    *columns, label = HEADERS[task].split("|")
    split = "test_matched" if task == "mnli" else "test"
    value = TASKS[task].values or TASKS[task].labels
    row = "|".join([*columns, "3.5" if task == "stsb" else value[0]])

    def read_with(*header: str) -> list[tuple[str, object]]:
        write(tmp_path / f"{split}.tsv", "|".join(header), row)
        return [(e.id, e.label) for e in read_split(task, tmp_path, split).examples]

    ((name, target),) = read_with(*columns, label)
    assert (name, target is None) == (columns[0], False)
    for wrong in (label[:-1], label.upper() + "S", "?", f"my {label}"):
        with pytest.raises(UserError, match=f"no column {label!r}, but .* rename it to {label}"):
            read_with(*columns, wrong)
    for wrong in (f"{label} ", f"\u200b{label}"):  # white space is no damage
        assert read_with(*columns, wrong) == [(name, target)]
    for wrong in (columns[0].upper(), f"{columns[0]}_"):
        with pytest.raises(UserError, match=f"column '{wrong}' looks like '{columns[0]}'; rename"):
            read_with(wrong, *columns[1:], label)
    with pytest.raises(UserError, match=f"2 columns are named {label!r}"):
        read_with(label, *columns[1:], label)
    with pytest.raises(UserError, match=r"\.tsv: the first line is not a header: it"):
        read_with(*row.upper().split("|"))


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (["good|1", "bad|2"], "row 3: label '2' is not one of 0, 1"),
        (["good|1|1"], "row 2: too many columns: 3 instead of 2"),
        (["good"], "row 2: too few columns: 1 instead of 2"),
        (["go\0od|1"], "row 2: has a NUL byte; the file is damaged or is UTF-16"),
    ],
)
def test_a_bad_row_is_named(rows: list[str], problem: str, tmp_path: Path) -> None:
    write(tmp_path / "dev.tsv", "sentence|label", *rows)
    with pytest.raises(UserError) as error:
        read_split("sst2", tmp_path, "dev")
    assert str(error.value) == f"{tmp_path / 'dev.tsv'}: {problem}"


def test_what_is_not_utf8_is_named_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_bytes(b"sentence\tlabel\nfine\t1\ncaf\xe9\t1\n")
    with pytest.raises(UserError, match=r"dev.tsv: row 3: not UTF-8 at byte 4 \(0xe9\)"):
        read_split("sst2", tmp_path, "dev")


def test_an_empty_text_is_kept_and_a_blank_row_counted(tmp_path: Path) -> None:
    write(tmp_path / "dev.tsv", "sentence|label", "|1", "", "good|0")
    examples = read_split("sst2", tmp_path, "dev")
    assert [(e.id, *e.texts, e.row) for e in examples.examples] == [("0", "", 2), ("1", "good", 4)]
    assert examples.dropped == {"blank row": 1}


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'sst-2' is not a task of GLUE; did you mean sst2"):
        read_split("sst-2", tmp_path, "dev")
    with pytest.raises(UserError, match=r"dev.tsv, or in_domain_dev.tsv and out_of_domain_dev.tsv"):
        read_split("cola", tmp_path, "dev")
    write(tmp_path / "dev.tsv", "text|label", "good|1")
    with pytest.raises(UserError, match=r"dev.tsv: no column 'sentence'; valid: label, text"):
        read_split("sst2", tmp_path, "dev")
    (tmp_path / "train.tsv").write_bytes(b"")
    with pytest.raises(UserError, match=r"train.tsv: empty; it should start with a header"):
        read_split("sst2", tmp_path, "train")


@pytest.mark.parametrize(
    ("task", "folder", "split", "count", "positive"),
    [
        ("cola", "CoLA", "train", 8551, 6023),
        ("cola", "CoLA", "dev", 1043, 719),
        ("rte", "RTE", "train", 2490, 1241),
        ("rte", "RTE", "dev", 277, 131),
        ("sst2", "SST-2", "train", 67349, 37569),
        ("sst2", "SST-2", "dev", 872, 444),
    ],
)
def test_the_released_files_have_glues_counts(
    real_data: Path, task: str, folder: str, split: str, count: int, positive: int
) -> None:
    """positive: examples of the class with id 1."""
    examples = read_split(task, real_data / "glue" / folder, split)
    assert len(examples.examples) == count
    assert sum(e.label for e in examples.examples) == positive
    assert examples.dropped == {}
    assert len({e.id for e in examples.examples}) == count
