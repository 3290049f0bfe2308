"""Questions about texts from the JSON files of SQuAD 1.1 and 2.0."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NoReturn

from etils import epath

from bert_jax.data_pipeline.settings import shown
from bert_jax.errors import UserError, conversion, count
from bert_jax.finetune.tasks.labeled_examples import UNLOCATED, Examples, Question
from bert_jax.finetune.tasks.rows import damage, misspelled, refuse_compressed
from bert_jax.storage import json_record
from bert_jax.storage.remote import storage_errors
from bert_jax.storage.versions import read_once

_LARGEST = 1 << 30  # bytes of a file; SQuAD 2.0 has 42 MB
OUTPUTS = ("start", "end")  # of a model: the answer's first and last token
_OPTIONAL = ("answers", "is_impossible")  # keys of a question
_FORM = "data[].paragraphs[].{context, qas[].{id, question, answers[].{text, answer_start}}}"


def read_questions(path: epath.PathLike, *, strict: bool = False) -> Examples:
    """Reads the questions of a file; a file in which none has an answer has no labels.

    An answer that is not in its context at its offset has the offset -1: it can be compared with
    predictions, not learned. How many there are is a remark.

    Args:
        strict: such an answer is an error.

    Raises:
        UserError: the file cannot be read or has another form, two questions have one id, or a
            question has no answer and does not say `is_impossible`.
    """
    refuse_compressed(path)
    with storage_errors(path):
        data = read_once(path, _LARGEST)
    try:
        root = json_record.parse(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 at byte {error.start + 1:,} (0x{data[error.start]:02x})"
        raise UserError(f"{path}: {problem}; convert it: {conversion(data)}") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    lost: list[str] = []
    questions = tuple(_questions(path, root, lost))
    if not questions:
        raise UserError(f"{path}: no questions; it should have {_FORM}")
    if lost and strict:
        raise UserError(f"{path}: {lost[0]}")
    _check(path, questions)
    number = count(len(lost), "answer")
    remarks = tuple(f"{number} not at the offset, the first: {first}" for first in lost[:1])
    return Examples(str(path), "question_answering", OUTPUTS, questions, {}, remarks)


def to_learn(examples: Examples) -> Examples:
    """Returns the questions of which an answer is at its offset, or that are impossible; the others
    are counted. UserError if none is left."""
    listed: Any = examples.examples
    kept = tuple(one for one in listed if one.impossible or one.located)
    if left_out := len(listed) - len(kept):
        if not kept:
            raise UserError(f"{examples.path}: no question to learn; {examples.remarks[0]}")
        dropped = {**examples.dropped, "answer not at its offset": left_out}
        return dataclasses.replace(examples, examples=kept, dropped=dropped)
    return examples


def _questions(path: epath.PathLike, root: Any, lost: list[str]) -> Iterator[Question]:
    """lost: gets what is wrong with each answer that is not at its offset."""
    row = 0
    for article in _list(path, row, root, "data"):
        for paragraph in _list(path, row, article, "paragraphs"):
            context = _string(path, row, paragraph, "context")
            for entry in _list(path, row, paragraph, "qas"):
                row += 1
                yield _question(path, row, entry, context, lost)


def _question(
    path: epath.PathLike, row: int, entry: Any, context: str, lost: list[str]
) -> Question:
    name, question = (_string(path, row, entry, key) for key in ("id", "question"))
    if found := misspelled(entry, _OPTIONAL):
        _wrong(path, row, f"key {shown(found[0])} looks like {found[1]!r}; rename it")
    impossible = entry.get("is_impossible", False)
    if not isinstance(impossible, bool):
        _wrong(path, row, f"is_impossible={shown(impossible)} should be true or false")
    answers = []
    for answer in _list(path, row, entry, "answers") if entry.get("answers") is not None else []:
        text, start = _string(path, row, answer, "text"), answer.get("answer_start")
        if problem := _problem(context, text, start):
            lost.append(f"question {row:,}: {problem}")
            start = UNLOCATED
        answers.append((text, start))
    if impossible and answers:
        _wrong(path, row, "is_impossible, but has answers")
    return Question(name, question, context, tuple(answers), impossible, row)


def _problem(context: str, text: str, start: Any) -> str:
    """Returns why an answer is not at its offset; "" if it is."""
    if not isinstance(start, int) or isinstance(start, bool):
        return f"answer_start={shown(start)} should be a whole number"
    found = context[start : start + len(text)] if start >= 0 else ""
    if text and found == text:
        return ""
    problem = f"answer {shown(text)} is not at character {start} of its context"
    return f"{problem}, where {shown(found)} is"


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
