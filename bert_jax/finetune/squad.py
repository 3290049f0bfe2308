"""Questions about texts from the JSON files of SQuAD 1.1 and 2.0."""

import codecs
from collections.abc import Iterator
from typing import Any, NoReturn

from etils import epath

from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.settings import shown
from bert_jax.data_pipeline.storage import json_record
from bert_jax.data_pipeline.storage.remote import storage_errors
from bert_jax.data_pipeline.storage.versions import read_once
from bert_jax.finetune.examples import Examples, Question
from bert_jax.finetune.rows import damage

_LARGEST = 1 << 30  # bytes of a file; SQuAD 2.0 has 42 MB
OUTPUTS = ("start", "end")  # of a model: the answer's first and last token
_FORM = "data[].paragraphs[].{context, qas[].{id, question, answers[].{text, answer_start}}}"


def read(path: epath.PathLike) -> Examples:
    """Reads the questions of a file; a file in which none has an answer has no labels.

    Raises:
        UserError: the file cannot be read or has another form, two questions have one id, an answer
            is not in its context at its offset, or a question has no answer and does not say
            `is_impossible`.
    """
    with storage_errors(path):
        data = read_once(path, _LARGEST)
    try:
        root = json_record.parse(data.removeprefix(codecs.BOM_UTF8))
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    questions = tuple(_questions(path, root))
    if not questions:
        raise UserError(f"{path}: no questions; it should have {_FORM}")
    _check(path, questions)
    return Examples(str(path), "question_answering", OUTPUTS, questions, {})


def _questions(path: epath.PathLike, root: Any) -> Iterator[Question]:
    row = 0
    for article in _list(path, row, root, "data"):
        for paragraph in _list(path, row, article, "paragraphs"):
            context = _string(path, row, paragraph, "context")
            for entry in _list(path, row, paragraph, "qas"):
                row += 1
                yield _question(path, row, entry, context)


def _question(path: epath.PathLike, row: int, entry: Any, context: str) -> Question:
    name, question = (_string(path, row, entry, key) for key in ("id", "question"))
    impossible = entry.get("is_impossible", False)
    if not isinstance(impossible, bool):
        _wrong(path, row, f"is_impossible={shown(impossible)} should be true or false")
    answers = []
    for answer in _list(path, row, entry, "answers") if entry.get("answers") is not None else []:
        text = _string(path, row, answer, "text")
        start = answer.get("answer_start")
        if not isinstance(start, int) or isinstance(start, bool):
            _wrong(path, row, f"answer_start={shown(start)} should be a whole number")
        found = context[start : start + len(text)] if start >= 0 else ""
        if not text or found != text:
            problem = f"answer {shown(text)} is not at character {start} of its context"
            _wrong(path, row, f"{problem}, where {shown(found)} is")
        answers.append((text, start))
    if impossible and answers:
        _wrong(path, row, "is_impossible, but has answers")
    return Question(name, question, context, tuple(answers), impossible, row)


def _check(path: epath.PathLike, questions: tuple[Question, ...]) -> None:
    """Raises UserError for an id that two questions have, or for a question without a label in a
    file with labels."""
    rows: dict[str, int] = {}
    for question in questions:
        if question.id in rows:
            first = f"question {rows[question.id]:,}"
            _wrong(path, question.row, f"has the id {shown(question.id)} of {first}")
        rows[question.id] = question.row
    labelled = [bool(question.answers) or question.impossible for question in questions]
    if any(labelled) and not all(labelled):
        row = questions[labelled.index(False)].row
        _wrong(path, row, "has no answer; give one, or is_impossible: true")


def _list(path: epath.PathLike, row: int, value: Any, key: str) -> list[Any]:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, list):
        _wrong(path, row, f"{key} should be a list; the form is {_FORM}")
    return found


def _string(path: epath.PathLike, row: int, value: Any, key: str) -> str:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, str):
        _wrong(path, row, f"{key}={shown(found)} should be text")
    if problem := damage(found):
        _wrong(path, row, f"{key} {problem}")
    return found


def _wrong(path: epath.PathLike, row: int, problem: str) -> NoReturn:
    where = f"question {row:,}" if row else "before the first question"
    raise UserError(f"{path}: {where}: {problem}")
