"""Tables, CoNLL and SQuAD files of users: what is read, and what is wrong in them."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bert_jax.config.task_settings import TaskConfig
from bert_jax.data_pipeline.sources import jsonl, parse_source, reading
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune.tasks import conll, qa, squad, table
from bert_jax.finetune.tasks.question_task import QUESTION_ANSWERING
from bert_jax.finetune.tasks.table import Columns


def made(tmp_path: Path, name: str, text: str) -> Path:
    (tmp_path / name).write_bytes(text.encode())
    return tmp_path / name


# Tables ------------------------------------------------------------------------------------------


def test_columns_are_named_in_any_order(tmp_path: Path) -> None:
    path = made(
        tmp_path, "mail.csv", '\ufeffid,kind,body\n7,spam,"Buy, ""now""\nor never"\n8,ham,Hi\n'
    )
    examples = table.read_table(path, Columns("body", label="kind"))
    assert (examples.kind, examples.labels) == ("classification", ("ham", "spam"))
    assert [(e.id, e.texts, e.label, e.row) for e in examples.examples] == [
        ("0", ('Buy, "now"\nor never',), 1, 2),
        ("1", ("Hi",), 0, 4),
    ]


def test_white_space_in_a_header_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = made(tmp_path, "a.tsv", "text \t\u200blabel\u00a0\nA\tx\n")
    (example,) = table.read_table(path, Columns("text", label="label")).examples
    assert (example.texts, example.label) == (("A",), 0)


def test_quotes_of_a_tsv_are_text(tmp_path: Path) -> None:
    path = made(tmp_path, "a.tsv", 'text\tscore\n"A 5" disk\t1.5\n')
    (example,) = table.read_table(path, Columns("text", score="score")).examples
    assert (example.texts, example.label) == (('"A 5" disk',), 1.5)
    path = made(tmp_path, "b.csv", 'text\n"never closed\n')
    with pytest.raises(UserError, match=r"b.csv: row 2: a stray quote .* or give a .tsv"):
        table.read_table(path, Columns("text"))


def test_jsonl_has_keys_for_columns(tmp_path: Path) -> None:
    lines = ['{"a": "One", "b": "two", "y": 10}', "", '{"b": "", "a": "x", "y": 9}']
    path = made(tmp_path, "a.jsonl", "\n".join(lines))
    examples = table.read_table(path, Columns("a", "b", label="y"))
    assert examples.labels == ("9", "10")
    assert [(e.texts, e.label) for e in examples.examples] == [(("One", "two"), 1), (("x", ""), 0)]
    assert examples.dropped == {"blank row": 1}


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        (['"spam"', '"spam "', '"\\u00a0spam\\ufeff"', '"ham"'], ("ham", "spam")),
        (["1", '"1"', "1.0", '"1.00 "', "0"], ("0", "1")),
        (["1.0", "0.0"], ("0.0", "1.0")),  # as pandas writes them
        (['"+1"', "1", "1.0", "-0.0", '"0"', "1e0"], ("0", "1")),
        (["1e+16", "10000000000000000", "3"], ("3", "10000000000000000")),
        (['"1e9999"', "2"], ("2", "1e9999")),
        (['"spam"', '"sp\u200bam"', '"sp\u00adam"', '"s\u2060pam"', '"ham"'], ("ham", "spam")),
        (['"\u06cc\u200c\u0646"', '"\u06cc\u0646"'], ("\u06cc\u0646", "\u06cc\u200c\u0646")),
        (["10", "9", "-1", "2.5"], ("-1", "2.5", "9", "10")),
        (['"1.10"', '"1.1"', '"1.9"'], ("1.1", "1.10", "1.9")),  # versions
        (['"01"', '"1"', '"2"'], ("01", "1", "2")),
        (['"caf\u00e9"', '"cafe\u0301"', '"a"'], ("a", "caf\u00e9")),
        (['"not  spam"', '"not\\tspam"', '"x"'], ("not spam", "x")),
        (["true", "false"], ("false", "true")),
        (["9007199254740993", "9007199254740992"], ("9007199254740992", "9007199254740993")),
    ],
)
def test_labels_are_what_they_say_not_how_they_are_typed(typed, names, tmp_path: Path) -> None:
    rows = [f'{{"text": "A", "label": {label}}}\n' for label in typed]
    path, columns = made(tmp_path, "a.jsonl", "".join(rows)), Columns("text", label="label")
    examples = table.read_table(path, columns)
    assert examples.labels == names
    assert any("are one class" in note for note in examples.notes) is (len(typed) > len(names))
    again = table.read_table(path, columns, labels=names)
    assert [e.label for e in again.examples] == [e.label for e in examples.examples]


def test_labels_that_differ_in_case_are_said_to_be_two(tmp_path: Path) -> None:
    path = made(tmp_path, "a.tsv", "text\tlabel\nA\tSpam\nB\tspam\n")
    examples = table.read_table(path, Columns("text", label="label"))
    assert examples.labels == ("Spam", "spam")
    wanted = "labels 'Spam' and 'spam' are 2 classes, though only their case differs"
    assert examples.notes == [wanted]
    tags = conll.read_sentences(made(tmp_path, "a.txt", "A B-PER\nB B-Per\n"))
    assert tags.notes == ["labels 'PER' and 'Per' are 2 classes, though only their case differs"]


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ("0.5", "0.50", "they are the same number"),
        ("01", "1", "they are the same number"),
        ("a\u200cb", "ab", "they look alike"),
        ("\u2764", "\u2764\ufe0f", "they look alike"),
    ],
)
def test_labels_that_may_be_one_class_are_said_to_be_two(
    one: str, other: str, why: str, tmp_path: Path
) -> None:
    path = made(tmp_path, "a.tsv", f"text\tlabel\nA\t{one}\nB\t{other}\n")
    (note,) = table.read_table(path, Columns("text", label="label")).notes
    assert note.endswith(f"are 2 classes, though {why}")


def test_labels_of_a_model_are_found_as_they_are_written_first(tmp_path: Path) -> None:
    path = made(tmp_path, "a.tsv", "text\tlabel\nA\t1.0\nB\t1\nC\t1.00\n")
    examples = table.read_table(path, Columns("text", label="label"), labels=["1.0", "1"]).examples
    assert [example.label for example in examples] == [0, 1, 1]


def test_labels_of_another_file_keep_their_ids(tmp_path: Path) -> None:
    path = made(tmp_path, "a.tsv", "text\tlabel\nA\tham\n")
    (example,) = table.read_table(
        path, Columns("text", label="label"), labels=["spam", "ham"]
    ).examples
    assert example.label == 1
    with pytest.raises(UserError, match=r"a.tsv: row 2: label 'ham' is not one of spam, eggs$"):
        table.read_table(path, Columns("text", label="label"), labels=["spam", "eggs"])


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.tsv", "text\tlabel\nA\n", "row 2: too few columns: 1 instead of 2"),
        ("a.tsv", "text\tlabel\nA\t1\t2\n", "row 2: too many columns: 3 instead of 2"),
        ("a.tsv", "text\tlabel\nA\t\n", "row 2: no label in column 'label'"),
        ("a.tsv", "text\tlabels\nA\t1\n", "no column 'label'; did you mean labels?"),
        (
            "a.tsv",
            "A\t1\nB\t2\n",
            "no column 'text'; valid: 1, A",
        ),
        ("a.tsv", "text\tlabel\tlabel\n", "2 columns are named 'label'; rename one"),
        ("a.tsv", "", "empty"),
        ("a.jsonl", '{"text": "A", "label": "x"}\n{', "row 2: not JSON (Expecting property name"),
        ("a.jsonl", "1", "row 1: not a JSON object, such as {…}"),
        ("a.jsonl", '{"text": "A", "labels": 1}', "row 1: no key 'label'; did you mean labels?"),
        ("a.jsonl", '{"text": null, "label": 1}', "row 1: 'text' should be text or a number, not"),
        (
            "a.jsonl",
            '{"text": "A\\u0000", "label": "x"}',
            "row 1: 'text' has a NUL byte; the file is damaged",
        ),
        (
            "a.jsonl",
            '{"text": "A\\ud800", "label": "x"}',
            "row 1: 'text' has half of a surrogate pair",
        ),
        (
            "a.csv",
            "text,label\nA\rB,x\n",
            "row 2: too few columns: 1 instead of 2",
        ),
        ("a.xml", "", "not a .tsv, .csv, .jsonl or .parquet file; rename it"),
    ],
)
def test_a_bad_table_is_one_line(name: str, text: str, problem: str, tmp_path: Path) -> None:
    path = made(tmp_path, name, text)
    with pytest.raises(UserError) as error:
        table.read_table(path, Columns("text", label="label"))
    assert str(error.value).startswith(f"{path}: {problem}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["reviews", "a.tsv"])
def test_a_file_that_is_missing_is_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?i)no such file") as error:
        table.read_table(tmp_path / name, Columns("text", label="label"))
    assert "\n" not in str(error.value)


def test_a_file_of_a_spreadsheet_is_converted_from_utf_16(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes("text\tlabel\nA\tx\n".encode("utf-16"))
    with pytest.raises(UserError, match=r"row 1: not UTF-8 .* iconv -f UTF-16 -t UTF-8"):
        table.read_table(tmp_path / "a.tsv", Columns("text", label="label"))


def followed(message: str, old: Path, new: Path) -> None:
    """Runs the command of a message."""
    command = re.search(r"(iconv|jq) .*? OLD > NEW(\.jsonl)?", message)[0]
    if not shutil.which(command.split()[0]):
        pytest.skip(f"no {command.split()[0]} on this machine")
    filled = re.sub(r"NEW(\.jsonl)?", str(new), command.replace("OLD", str(old)))
    subprocess.run(filled, shell=True, check=True)


QUOTED = "text\tlabel\n“Café” – 5 €\tx\n"


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "latin-1"])
@pytest.mark.parametrize("reader", ["table", "squad", "text"])
def test_the_command_for_another_encoding_gives_the_text(reader, encoding, tmp_path: Path) -> None:
    text = QUOTED if encoding != "latin-1" else "text\tlabel\nCafé\tx\n"
    old, new = tmp_path / "old.tsv", tmp_path / "new.tsv"
    old.write_bytes(text.encode(encoding))
    if encoding == "utf-16" and reader == "text":
        pytest.skip("refused by its format, before any line")
    read = {
        "table": lambda: table.read_table(old, Columns("text")),
        "squad": lambda: squad.read_questions(old),
        "text": lambda: list(reading.lines(old)),
    }
    with pytest.raises(UserError) as error:
        read[reader]()
    followed(str(error.value), old, new)
    assert new.read_text("utf-8") == text


@pytest.mark.parametrize(
    "text", ['\n[{"text": "A"}, {"text": "B"}]', '[\n  {"text": "A"},\n {"text": "B"}]']
)
@pytest.mark.parametrize("name", ["old.jsonl", "old.json"])
def test_the_command_for_a_json_array_gives_its_objects(name, text, tmp_path: Path) -> None:
    old, new = made(tmp_path, name, text), tmp_path / "new.jsonl"
    with pytest.raises(UserError) as error:
        table.read_table(old, Columns("text"))
    followed(str(error.value), old, new)
    assert [e.texts for e in table.read_table(new, Columns("text")).examples] == [("A",), ("B",)]
    spec = parse_source(f"jsonl:{old}")
    (part,) = jsonl.ranges(spec, old)
    with pytest.raises(
        UserError, match=r"old\.\w+: a JSON array; .*jq -c '\.\[\]' OLD"
    ) as of_source:
        list(jsonl.read(spec, part))
    followed(str(of_source.value), old, new)
    old.write_text('{"text": "A"}\n[1]\n"A"\n')  # whose objects the command would take apart
    for number in (2, 3):
        with pytest.raises(UserError, match=f":{number}: not a JSON object") as one_line:
            list(jsonl.read(spec, part))
        assert "jq" not in str(one_line.value)
        old.write_text('{"text": "A"}\n\n"A"\n')


@pytest.mark.parametrize("score", ["", "x", "nan", "inf", "1_000"])
def test_a_score_is_a_number(score: str, tmp_path: Path) -> None:
    path = made(tmp_path, "a.tsv", f"text\tscore\nA\t{score}\n")
    with pytest.raises(UserError, match=f"row 2: score '{score}' is not a number$"):
        table.read_table(path, Columns("text", score="score"))


# CoNLL -------------------------------------------------------------------------------------------

RELEASED = """-DOCSTART- -X- -X- O

EU NNP B-NP I-ORG
rejects VBZ B-VP O
U.K. NNP B-NP I-LOC
France NNP B-NP B-LOC
Nice NNP I-NP I-LOC
Bank NNP I-NP I-ORG

Peter NNP B-NP I-PER
"""


def test_iob1_as_released_is_read_as_iob2(tmp_path: Path) -> None:
    examples = conll.read_sentences(made(tmp_path, "train.txt", RELEASED))
    assert examples.labels == ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER")
    tags = [[examples.labels[i] for i in e.labels] for e in examples.examples]
    assert tags == [["B-ORG", "O", "B-LOC", "B-LOC", "I-LOC", "B-ORG"], ["B-PER"]]
    assert [(e.words[0], e.row) for e in examples.examples] == [("EU", 3), ("Peter", 10)]
    assert examples.dropped == {"-DOCSTART- row": 1}


def test_iob2_stays_as_it_is(tmp_path: Path) -> None:
    text = "A\tB-X\nb\tI-X\nC\tB-X\nd\tO\n"
    examples = conll.read_sentences(made(tmp_path, "a.txt", text), labels=["I-X", "O", "B-X"])
    assert [e.labels for e in examples.examples] == [(2, 0, 2, 1)]


def test_a_file_without_tags_has_words(tmp_path: Path) -> None:
    examples = conll.read_sentences(
        made(tmp_path, "a.txt", "No\u00a0break\nB\n\nC"), labelled=False
    )
    assert [(e.words, e.labels) for e in examples.examples] == [
        (("No\u00a0break", "B"), None),
        (("C",), None),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("A B-X\nB\n", "row 2: 'B' has no tag; give a word and its tag"),
        ("A NN B-X\nB O\n", "row 2: too few columns: 2 instead of 3"),
        ("A S-X\n", "row 1: tag 'S-X' is not of IOB1 or IOB2: O, B-… or I-…"),
        ("A B-X\nb I-Y\n", "row 2: tag 'B-Y' is not one of O, B-X, I-X"),
        ("\n\n", "no sentence; give a word and its tag on every row"),
    ],
)
def test_a_bad_conll_file_is_one_line(text: str, problem: str, tmp_path: Path) -> None:
    path = made(tmp_path, "a.txt", text)
    with pytest.raises(UserError) as error:
        conll.read_sentences(path, labels=["O", "B-X", "I-X"])
    assert str(error.value) == f"{path}: {problem}"


def test_the_word_may_be_in_another_column(tmp_path: Path) -> None:
    """As in GermEval 2014: number, word, tag, inner tag; with comments."""
    rows = [
        "#\thttp://a.b [2009-10-17]",
        "1\tAda\tB-PER\tO",
        "2\t#1\tO\tO",
        "",
        "#\tc",
        "1\tIn\tO\tO",
    ]
    path = made(tmp_path, "a.tsv", "\n".join(rows))
    for labelled in (True, False):
        with pytest.raises(UserError, match=r"column 1 has no words, but 1, 2, 1, …; .*text=2$"):
            conll.read_sentences(path, labelled=labelled)
    examples = conll.read_sentences(path, word=2, tag=3)
    assert [e.words for e in examples.examples] == [("Ada", "#1"), ("In",)]
    assert [[examples.labels[i] for i in e.labels] for e in examples.examples] == [
        ["B-PER", "O"],
        ["O"],
    ]
    assert examples.dropped == {"comment row": 2}
    assert [e.words for e in conll.read_sentences(path, labelled=False, word=2).examples] == [
        ("Ada", "#1"),
        ("In",),
    ]
    with pytest.raises(UserError, match=r"row 2: .* has 4 columns; give the word in column 5"):
        conll.read_sentences(path, word=5, labelled=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# a comment\n#1 O\n# O\nB O\n", ("#1", "#", "B")),  # also where it looks like one
        ("-DOCSTART- (1) O O\n\nA O\n", ("A",)),
        ("-docstart-\tO\nA O\n", ("A",)),
        ("1 O\n2 O\n3 O\n4 O\n", ("1", "2", "3", "4")),  # no other column has words
        ("a O\na O\na O\na O\n", ("a",) * 4),
        ("A O\u00a0\n", ("A",)),
    ],
)
def test_rows_of_words_and_others(text: str, words: tuple[str, ...], tmp_path: Path) -> None:
    (sentence,) = conll.read_sentences(made(tmp_path, "a.txt", text)).examples
    assert sentence.words == words
    assert set(sentence.labels) == {0}


def test_a_constant_first_column_is_no_word(tmp_path: Path) -> None:
    path = made(tmp_path, "a.txt", "".join(f"d1 {word} O\n" for word in "abcd"))
    with pytest.raises(UserError, match=r"column 1 has no words, but d1, d1, d1, …; .*text=2$"):
        conll.read_sentences(path)
    assert conll.read_sentences(path, word=1).examples[0].words == ("d1",) * 4


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a.tsv", "one column, so it may be a table of texts"),
        ("a.csv", "not in CoNLL's form"),
        ("a.jsonl", "not in CoNLL's form"),
    ],
)
def test_a_table_is_not_read_as_words(name: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=problem):
        conll.read_sentences(made(tmp_path, name, "text\nHello\n"), labelled=False)


# SQuAD -------------------------------------------------------------------------------------------


def squad_file(tmp_path: Path, *questions: dict[str, Any]) -> Path:
    qas = [{"id": f"q{i}", "question": "Who?", **one} for i, one in enumerate(questions)]
    paragraph = {"context": "Ada met Bob.", "qas": qas}
    root = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [paragraph]}]}
    return made(tmp_path, "train.json", json.dumps(root))


def test_squad_1_and_2_are_read(tmp_path: Path) -> None:
    answers = [{"text": "Bob", "answer_start": 8}, {"text": "Ada", "answer_start": 0}]
    impossible = {"is_impossible": True, "answers": [], "plausible_answers": answers}
    examples = squad.read_questions(squad_file(tmp_path, {"answers": answers}, impossible))
    first, second = examples.examples
    assert (first.id, first.question, first.context, first.row) == ("q0", "Who?", "Ada met Bob.", 1)
    assert (first.answers, first.impossible) == ((("Bob", 8), ("Ada", 0)), False)
    assert (second.answers, second.impossible, second.row) == ((), True, 2)
    (unlabelled,) = squad.read_questions(squad_file(tmp_path, {})).examples
    assert (unlabelled.answers, unlabelled.impossible) == ((), False)


@pytest.mark.parametrize(
    ("questions", "problem"),
    [
        (
            [{"answers": [{"text": "Bob", "answer_start": 7}]}],
            "question 1: answer 'Bob' is not at character 7 of its context, where ' Bo' is",
        ),
        (
            [{"answers": [{"text": ".", "answer_start": -1}]}],
            "question 1: answer '.' is not at character -1 of its context, where '' is",
        ),
        (
            [{"answers": [{"text": "Bob", "answer_start": "8"}]}],
            "question 1: answer_start='8' should be a whole number",
        ),
        (
            [{"is_impossible": True}, {"answers": []}],
            "question 2: has no answer; give one, or is_impossible: true",
        ),
        (
            [{"is_impossible": True, "answers": [{"text": "Bob", "answer_start": 8}]}],
            "question 1: is_impossible, but has answers",
        ),
        ([{}, {"id": "q0"}], "question 2: has the id 'q0' of question 1"),
        ([{"question": "A\0"}], "question 1: question has a NUL byte; the file is damaged"),
        ([{"id": 5}], "question 1: id=5 should be text"),
    ],
)
def test_a_bad_question_is_named(questions: list[dict], problem: str, tmp_path: Path) -> None:
    path = squad_file(tmp_path, *questions)
    with pytest.raises(UserError) as error:
        squad.read_questions(path, strict=True)
    assert str(error.value) == f"{path}: {problem}"


LOST, FOUND = {"text": "Bob", "answer_start": 7}, {"text": "Bob", "answer_start": 8}


def question_task(folder: Path, **settings: Any) -> TaskConfig:
    return TaskConfig(name="question_answering", data=str(folder), **settings)


def test_answers_that_are_not_at_their_offsets_are_not_learned(tmp_path: Path) -> None:
    """As in CMRC and a split of SQuAD 2.0: a few of many, which stay in the metrics."""
    bad = [LOST, {"text": "Bob", "answer_start": "8"}, {"text": "Bob"}, {**FOUND, "text": ""}]
    given = [{"answers": [FOUND, LOST]}, {"answers": [LOST, FOUND]}]
    given += [{"answers": [one]} for one in bad]
    for split in ("train", "dev"):
        squad_file(tmp_path, *given).rename(tmp_path / f"{split}-v1.1.json")
    train, dev = QUESTION_ANSWERING.read(question_task(tmp_path))
    assert [(one.id, one.located) for one in train.examples] == [
        ("q0", ("Bob", 8)),
        ("q1", ("Bob", 8)),
    ]
    assert train.dropped == {"answer not at its offset": 4}
    first = "question 1: answer 'Bob' is not at character 7 of its context, where ' Bo' is"
    assert train.remarks == (f"6 answers not at the offset, the first: {first}",)
    assert [one.id for one in dev.examples] == [f"q{i}" for i in range(6)]
    assert dev.dropped == {}
    words = ["ada", "met", "bob", "."]
    tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, *words], lowercase=True)
    targets = [one.target for one in qa.windows(dev.examples, tokenizer)]
    assert [target is None for target in targets] == [False] * 2 + [True] * 4
    new = QUESTION_ANSWERING.read_new(question_task(tmp_path), str(tmp_path), "dev")
    assert (len(new.examples), new.notes) == (6, [])


def test_strict_refuses_them_and_so_does_a_file_without_others(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        squad_file(tmp_path, {"answers": [LOST]}).rename(tmp_path / f"{split}-v1.1.json")
    with pytest.raises(UserError, match=r"v1.1.json: question 1: answer 'Bob' is not at char"):
        QUESTION_ANSWERING.read(question_task(tmp_path, strict=True))
    with pytest.raises(UserError, match=r"json: no question to learn; 1 answer not at the offset"):
        QUESTION_ANSWERING.read(question_task(tmp_path))


@pytest.mark.parametrize(
    ("key", "wanted"),
    [("is_imposible", "is_impossible"), ("isImpossible", "is_impossible"), ("answer", "answers")],
)
def test_a_misspelled_key_of_a_question_is_an_error(key: str, wanted: str, tmp_path: Path) -> None:
    path = squad_file(tmp_path, {key: []})
    with pytest.raises(
        UserError, match=f"question 1: key '{key}' looks like '{wanted}'; rename it"
    ):
        squad.read_questions(path)


@pytest.mark.parametrize("text", ["{", "[]", '{"data": []}', '{"data": [{"paragraphs": {}}]}'])
def test_what_is_no_squad_file_is_one_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train.json: (not JSON|no questions|before the first)"):
        squad.read_questions(made(tmp_path, "train.json", text))
