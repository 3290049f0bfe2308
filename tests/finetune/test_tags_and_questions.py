"""Tags and questions end to end: what a run learned, what it predicts, and errors."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from runs import read_records
from small_task import DEV, TRAIN, task_config, write_task

import bert_jax
from bert_jax import cli
from bert_jax.config.task_settings import TaskConfig
from bert_jax.errors import UserError
from bert_jax.finetune.results import run_result, write_results
from bert_jax.finetune.runs import finetune
from bert_jax.finetune.task_data import open_task
from bert_jax.finetune.tasks import conll, metrics, squad, squad_metrics
from bert_jax.finetune.tasks.task_kinds import KINDS
from bert_jax.runtime.log import logger
from bert_jax.workdir.layout import Workdir


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("task"))


def run_task(folder: Path, workdir: Path, **changes: Any) -> dict[str, Any]:
    """Fine-tunes; returns what results.json says."""
    config = task_config(folder, mesh__data=-1, optimizer__learning_rate=5e-3, **changes)
    data = finetune(config, workdir)
    write_results(workdir, config, data, [run_result(config, workdir)])
    return json.loads((workdir / "results.json").read_text())


def predict(*words: str) -> int:
    return cli.main(["predict", *words])


@pytest.mark.slow
def test_tags_are_learned_predicted_and_exported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = run_task(folder, tmp_path / "run", task__name="tagging", task__epochs=3.0)
    (run,), trivial = results["runs"], results["baselines"]
    assert results["metrics"] == ["f1", "precision", "recall", "accuracy"]
    assert results["examples"] == DEV
    assert trivial["majority"]["precision"] is None  # no entity is predicted
    assert run["f1"] > 0.6 > trivial["majority"]["f1"] == 0
    assert 0 < trivial["tag of the word"]["f1"] < 1
    out = tmp_path / "tags.txt"
    words = [f"--model={tmp_path / 'run'}", f"--input={folder}", "--split=dev"]
    assert predict(*words, f"--out={out}", "--nbest=nbest.json") == 1
    assert "--nbest has no effect for a tagging model; leave it out\n" in capsys.readouterr().err
    assert predict(*words, f"--out={out}") == 0
    truth = conll.read_sentences(folder / "dev.txt")
    found = [
        [line.split(" ") for line in part.splitlines()]
        for part in out.read_text().removesuffix("\n\n").split("\n\n")
    ]
    assert [[word for word, _ in part] for part in found] == [list(e.words) for e in truth.examples]
    labels = [[truth.labels[i] for i in e.labels] for e in truth.examples]
    tags = [[tag for _, tag in part] for part in found]
    assert metrics.entities(labels, tags)["f1"] == pytest.approx(run["f1"])
    bert_jax.export(tmp_path / "run", tmp_path / "exported")
    values = json.loads((tmp_path / "exported/config.json").read_text())
    assert values["architectures"] == ["BertForTokenClassification"]
    assert values["id2label"] == {"0": "O", "1": "B-PER", "2": "I-PER"}
    model = bert_jax.load(tmp_path / "exported")
    short = [part for part in found if len(part) < 10]  # an export has longer windows
    assert len(short) < DEV
    assert model.tag([[word for word, _ in part] for part in short]) == [
        [tag for _, tag in part] for part in short
    ]
    with pytest.raises(
        UserError, match="the model has a tagging head; give one with a classification or"
    ):
        model.predict("bal")


@pytest.mark.slow
def test_answers_are_learned_predicted_and_exported(folder: Path, tmp_path: Path) -> None:
    """Of SQuAD 2.0; the predictions have the scores of the evaluation in training."""
    changes = {"task__name": "question_answering", "task__null_threshold": 0.0}
    results = run_task(folder, tmp_path / "run", task__epochs=8.0, task__stride=16, **changes)
    (run,), trivial = results["runs"], results["baselines"]
    assert results["metrics"] == ["f1", "exact", "best_f1", "best_threshold"]
    assert run["best_f1"] >= run["f1"] >= run["exact"]
    assert run["f1"] > trivial["no answer"]["f1"] > 0
    assert run["f1"] > trivial["nearest sentence"]["f1"]
    source = folder / "dev-v2.0.json"
    files = {name: tmp_path / f"{name}.json" for name in ("out", "nbest", "null_odds")}
    words = [f"--{name}={file}" for name, file in files.items()]
    assert predict(f"--model={tmp_path / 'run'}", f"--input={source}", *words) == 0
    answers, best, odds = (json.loads(file.read_text()) for file in files.values())
    questions = squad.read_questions(source).examples
    assert list(answers) == list(best) == list(odds) == [one.id for one in questions]
    scores = squad_metrics.scores(questions, answers)
    assert scores["f1"] / 100 == pytest.approx(run["f1"])
    assert scores["exact"] / 100 == pytest.approx(run["exact"])
    for name, text in answers.items():
        spoken = next(one["text"] for one in best[name] if one["text"])
        assert text == ("" if odds[name] > 0 else spoken)
        assert sum(one["probability"] for one in best[name]) == pytest.approx(1)
    words = [f"--model={tmp_path / 'run'}", f"--input={source}", f"--out={files['out']}"]
    assert predict(*words, "--null_threshold=1e9", "--overwrite") == 0
    assert all(json.loads(files["out"].read_text()).values())
    bert_jax.export(tmp_path / "run", tmp_path / "exported")
    values = json.loads((tmp_path / "exported/config.json").read_text())
    assert values["architectures"] == ["BertForQuestionAnswering"]
    model = bert_jax.load(tmp_path / "exported")
    short = [one for one in questions if len(one.context) < 80]
    found = model.answer([(one.question, one.context) for one in short], null_threshold=0.0)
    assert [one.text for one in found] == [answers[one.id] for one in short]


@pytest.mark.slow
def test_questions_that_all_have_an_answer_are_answered(folder: Path, tmp_path: Path) -> None:
    """SQuAD 1.1 in one file, of which a tenth of the texts is held out."""
    source = str(folder / "train-v1.1.json")
    changes = {"task__name": "question_answering", "task__data": source, "task__keep": "best"}
    results = run_task(folder, tmp_path / "run", task__epochs=4.0, **changes)
    assert results["metrics"] == ["f1", "exact"]
    assert set(results["baselines"]) == {"nearest sentence"}
    assert (
        max(r["task/f1"] for r in read_records(tmp_path / "run", "eval"))
        == (results["runs"][0]["f1"])
    )
    out = tmp_path / "answers.json"
    words = [f"--model={tmp_path / 'run'}", f"--input={folder}", "--split=dev", f"--out={out}"]
    assert predict(*words) == 0
    assert all(json.loads(out.read_text()).values())


def test_a_padding_token_in_a_text_of_a_roberta_is_one_line(folder: Path, tmp_path: Path) -> None:
    config = task_config(folder, task__name="question_answering", task__data=str(tmp_path / "a"))
    text = (folder / "train-v1.1.json").read_text()
    (tmp_path / "a").write_text(re.sub(r'"question": "', '"question": "[PAD] ', text, count=1))
    open_task(config, Workdir.open("/nowhere/run"))
    config = config.replace("model.layout", "roberta")
    with pytest.raises(UserError, match=r"/a: .*\[PAD\] in a text has a position of its own in Ro"):
        open_task(config, Workdir.open("/nowhere/run"))
    open_task(config.replace("task.split_special_tokens", True), Workdir.open("/nowhere/run"))


def test_what_was_counted_is_said(folder: Path) -> None:
    config = task_config(folder, task__name="question_answering", task__max_question=1)
    text = (folder / "train-v1.1.json").read_text()
    assert "windows" in str(open_task(config, Workdir.open("/nowhere/run")))
    asked = folder / "long.json"
    asked.write_text(re.sub(r'"question": "(\w+)"', r'"question": "\1 bal"', text, count=3))
    data = open_task(config.replace("task.data", str(asked)), Workdir.open("/nowhere/run"))
    counted = re.findall(r"(\d) questions? cut to 1 tokens", str(data))
    assert sum(map(int, counted)) == 3
    tagged = folder / "long_words.txt"
    long = "bal" * 33
    tagged.write_text(f"{long} B-LOC\nbal O\n\nbal O\n{long} O\n\n" + TAGS)
    config = config.replace({"task.name": "tagging", "task.data": str(tagged)})
    data = open_task(config.replace("task.held_out", str(tagged)), Workdir.open("/nowhere/run"))
    assert str(data).count("2 words cut to a row of 32 tokens") == 2


def test_a_file_is_divided_by_its_texts(folder: Path) -> None:
    """All questions about a text are learned, or all are held out."""
    entry = json.loads((folder / "train-v1.1.json").read_text())
    for part in entry["data"][0]["paragraphs"]:
        (first,) = part["qas"]
        part["qas"] = [first, first | {"id": first["id"] + "b"}]
    path = folder / "two.json"
    path.write_text(json.dumps(entry))
    config = task_config(folder, task__name="question_answering", task__data=str(path))
    data = open_task(config, Workdir.open("/nowhere/run"))
    train, held_out = (
        {q.context for q in s.examples.examples} for s in (data.train, data.held_out)
    )
    assert train.isdisjoint(held_out)
    assert len(data.held_out.examples.examples) == 2 * len(held_out) > 0


def test_equal_texts_are_held_out_together(folder: Path, tmp_path: Path) -> None:
    """A file without equal texts keeps its split."""
    files = {"classification": tmp_path / "a.tsv", "tagging": tmp_path / "a.txt"}

    def ids(name: str, texts: list[str]) -> list[list[int]]:
        rows = [f"{text}\t{'xy'[i % 2]}" for i, text in enumerate(texts)]
        words = [*("\n".join(f"{word} O" for word in text.split()) for text in texts)]
        files["classification"].write_text("\n".join(["text\tlabel", *rows]) + "\n")
        files["tagging"].write_text("\n\n".join(words) + "\n")
        train, held_out = KINDS[name].read(TaskConfig(name=name, data=str(files[name])))
        return [[int(one.id) for one in split.examples] for split in (train, held_out)]

    for name in files:
        train, held_out = ids(name, [f"bal {i}" for i in range(40)])
        assert len(held_out) == 4
        equal = [f"{'bal' if i < 40 else 'BAL '} {i % 40}" for i in range(80)]
        assert ids(name, equal) == [[*of, *(i + 40 for i in of)] for of in (train, held_out)]


def test_held_out_texts_that_were_learned_are_counted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dev.txt"
    path.write_text((folder / "dev.txt").read_text())
    config = task_config(folder, task__name="tagging", task__held_out=str(path))
    said: list[str] = []
    monkeypatch.setattr(logger, "info", said.append)
    open_task(config, Workdir.open("/nowhere/run")).warn(config)
    path.write_text(path.read_text() + "\n\n" + (folder / "train.txt").read_text().upper())
    before = len(said)
    open_task(config, Workdir.open("/nowhere/run")).warn(config)
    (line,) = said[before:]
    assert re.search(rf"dev.txt: of {DEV + TRAIN} held-out examples, {TRAIN}\d? have texts", line)


TAGS = "bal O\ndal I-PER\n\nfal O\n"
SQUAD = {"context": "bal dal", "qas": [{"id": "q", "question": "fal", "answers": []}]}
ANSWER = [{"text": "dal", "answer_start": 4}]


@pytest.mark.parametrize(
    ("task", "train", "held_out", "message"),
    [
        ("tagging", "", TAGS, "train: no sentence; give a word and its tag on every row"),
        ("tagging", "bal\n", TAGS, "train: row 1: 'bal' has no tag; give a word and its tag"),
        ("tagging", "bal X\n", TAGS, "train: row 1: tag 'X' is not of IOB1 or IOB2"),
        ("tagging", TAGS, "\ufeffbal O\ndal I-LOC\n", "held: row 2: tag 'B-LOC' is not one of"),
        ("tagging", TAGS, "bal O\nd\0l O\n", "held: row 2: has a NUL byte"),
        ("question_answering", "", SQUAD, "train: not JSON"),
        ("question_answering", SQUAD, SQUAD, "train: question 1 has no answer; give a labelled"),
        (
            "question_answering", [{"text": "dal", "answer_start": 3}], ANSWER,
            "train: no question to learn; 1 answer not at the offset",
        ),
        (
            "question_answering", ANSWER, None,
            "set --config.task.null_threshold=0",
        ),
        (
            "question_answering", ANSWER, [{"text": "d\0l", "answer_start": 4}],
            "held: question 1: text has a NUL byte; the file is",
        ),
        (
            "question_answering", ANSWER, [{"text": "\ud800", "answer_start": 4}],
            "held: question 1: text has half of a surrogate pair",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_one_line(
    folder: Path, tmp_path: Path, task: str, train: Any, held_out: Any, message: str
) -> None:
    for name, given in (("train", train), ("held", held_out)):
        if not isinstance(given, str):
            own: dict[str, Any] = {"answers": given} if given else {"is_impossible": True}
            paragraph = given if given is SQUAD else SQUAD | {"qas": [SQUAD["qas"][0] | own]}
            given = json.dumps({"data": [{"paragraphs": [paragraph]}]})
        (tmp_path / name).write_text(given)
    files = {"task__data": str(tmp_path / "train"), "task__held_out": str(tmp_path / "held")}
    with pytest.raises(UserError, match=re.escape(message)) as raised:
        finetune(task_config(folder, task__name=task, **files), tmp_path / "run")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()
