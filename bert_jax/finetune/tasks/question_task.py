"""Questions whose answer is a part of a text: the files of SQuAD 1.1 and 2.0.

A prediction is an `Answers`.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from bert_jax.config.task_settings import TaskConfig
from bert_jax.errors import UserError, count
from bert_jax.finetune.tasks import qa, soft_answers, squad, squad_metrics
from bert_jax.finetune.tasks.baselines import nearest_sentence
from bert_jax.finetune.tasks.encoding import Targets, joined
from bert_jax.finetune.tasks.kind import (
    Arrays,
    Logits,
    Measured,
    Prepared,
    TaskContext,
    TaskKind,
)
from bert_jax.finetune.tasks.labeled_examples import Examples, Question
from bert_jax.finetune.tasks.qa import Answer, Answers
from bert_jax.finetune.tasks.splits import Files, divided, find_file, find_files, same_text
from bert_jax.objectives.question_answering import QUESTION_ANSWERING as OBJECTIVE
from bert_jax.objectives.soft_labels import TEACHER

_Value = TypeVar("_Value")
_NO_TEXT: Final = 1e9  # the null score where a context has no token: JSON has no infinity


class QuestionTask(TaskKind):
    """Questions about texts."""

    name = "question_answering"
    objectives = (OBJECTIVE.name,)
    own_settings = ("answer_softmax",)
    settings = ("null_threshold",)
    extra_outputs = ("nbest", "null_odds")

    def read(self, task: TaskConfig) -> tuple[Examples, Examples]:
        path, other = find_files(task, _files(task))
        train = squad.read_questions(path, strict=task.strict)
        if other:
            held_out = squad.read_questions(other, strict=task.strict)
        else:  # a model that has seen the text knows more
            train, held_out = divided(train, [self.group(one) for one in _of(train)])
        for split in (train, held_out):
            _check_answers(task, split)
        return squad.to_learn(train), held_out

    def read_new(self, task: TaskConfig, source: str, split: str) -> Examples:
        found = squad.read_questions(find_file(self.name, source, _files(task), split))
        return dataclasses.replace(found, remarks=())  # on answers, which nothing reads

    def group(self, example: Question) -> tuple[str, ...]:
        return same_text(example.context)

    def labels(self, examples: Examples) -> list[str]:
        return [question.answers[0][0] if question.answers else "" for question in _of(examples)]

    def content(self, examples: Examples) -> list[Any]:
        return [[one.question, one.context, list(map(list, one.answers))] for one in _of(examples)]

    def prepare(self, context: TaskContext, examples: Examples) -> Prepared:
        """Windows of the contexts; one that does not have the answer has the target [CLS]."""
        task, tokenizer = context.task, context.tokenizer
        lengths = qa.Lengths(context.limit, task.stride, task.max_question)
        made = qa.windows(_of(examples), tokenizer, lengths)
        typed = context.model.type_vocab_size > 1
        encoded = joined([one.token_ids for one in made], [one.segment_ids * typed for one in made])
        targets = np.array([one.target or (0, 0) for one in made], np.int32)
        known = np.array([one.target is not None for one in made])
        cut = len({one.example for one in made if one.question_cut})
        lost = len({one.example for one in made if one.target is None})
        notes = [f"{count(cut, 'question')} cut to {task.max_question} tokens"] if cut else []
        if lost and known.any():
            notes.append(f"{count(lost, 'answer')} without a token, not learned")
        return Prepared(
            encoded,
            Targets(
                of_examples={"answer_weights": known.astype(np.float32)},
                positions={"answer_starts": targets[:, 0], "answer_ends": targets[:, 1]},
            ),
            tuple(made),
            tuple(notes),
        )

    def metrics(self, task: TaskConfig, labels: Sequence[str]) -> tuple[str, ...]:
        names = ("f1", "exact")
        return names if task.null_threshold is None else (*names, "best_f1", "best_threshold")

    def predictions(
        self, task: TaskConfig, examples: Examples, prepared: Prepared, logits: Logits
    ) -> list[Answers]:
        own: list[tuple[list[qa.Window], list[np.ndarray]]] = [([], []) for _ in _of(examples)]
        for window, values in zip(prepared.windows, logits, strict=True):
            for part, value in zip(own[window.example], (window, values), strict=True):
                part.append(value)
        return [
            qa.predict(
                question,
                windows,
                values,
                no_answer=task.null_threshold is not None,
                n_best=task.n_best,
                max_answer=task.max_answer,
                threshold=task.null_threshold or 0.0,
            )
            for question, (windows, values) in zip(_of(examples), own, strict=True)
        ]

    def teacher_outputs(self, prepared: Prepared, logits: Logits) -> Arrays:
        return soft_answers.of_pieces(prepared.windows, logits)

    def soft_targets(self, outputs: Arrays, prepared: Prepared, temperature: float) -> Targets:
        soft = soft_answers.on_tokens(outputs, prepared.windows, temperature)
        return Targets(of_tokens={TEACHER: soft})

    def compute_metrics(
        self, task: TaskConfig, examples: Examples, predictions: Sequence[Answers]
    ) -> Measured:
        """By the official rules, from 0 to 1; and where a question may have no answer, the best F1
        over all thresholds, with its threshold."""
        questions = _of(examples)
        found = squad_metrics.scores(
            questions, _by_id(questions, predictions, lambda one: one.text)
        )
        measured = {name: found[name] / 100 for name in ("f1", "exact")}
        if task.null_threshold is None:
            return measured
        answers = _by_id(questions, predictions, lambda one: one.best[0].text if one.best else "")
        swept = squad_metrics.scores(
            questions, answers, _by_id(questions, predictions, _null_score)
        )
        best = {"best_f1": swept["best_f1"] / 100, "best_threshold": swept["best_f1_thresh"]}
        return measured | best

    def baselines(
        self, task: TaskConfig, train: Examples, held_out: Examples
    ) -> Mapping[str, Sequence[Answers]]:
        questions = _of(held_out)
        texts = [nearest_sentence(one.question, one.context) for one in questions]
        best = [Answer(text, 0, len(text), 0.0, 1.0) for text in texts]
        found = {"nearest sentence": [Answers(one.text, (one,), 0.0) for one in best]}
        if task.null_threshold is not None:
            found["no answer"] = [Answers("", (), 0.0)] * len(questions)
        return found

    def files(
        self, task: TaskConfig, examples: Examples, predictions: Sequence[Answers]
    ) -> Mapping[str, str]:
        """Returns the files that SQuAD's evaluation reads, as run_squad.py writes them."""
        questions = _of(examples)
        found: dict[str, Mapping[str, Any]] = {
            "out": _by_id(questions, predictions, lambda one: one.text),
            "nbest": _by_id(questions, predictions, lambda one: _n_best(task, one)),
            "null_odds": _by_id(questions, predictions, _null_score),
        }
        return {
            name: json.dumps(values, indent=2, ensure_ascii=False) + "\n"
            for name, values in found.items()
        }


def _files(task: TaskConfig) -> Files:
    """Returns the names that the released files have."""
    version = "v1.1" if task.null_threshold is None else "v2.0"
    splits = ("train", "dev", "test")
    return {split: ((f"{split}-{version}.json",), (f"{split}.json",)) for split in splits}


def _of(examples: Examples) -> tuple[Question, ...]:
    return examples.examples


def _check_answers(task: TaskConfig, examples: Examples) -> None:
    """Raises UserError for a question without a label, or without an answer where each has one."""
    for question in _of(examples):
        where = f"{examples.path}: question {question.row:,}"
        if not question.answers and not question.impossible:
            raise UserError(f"{where} has no answer; give a labelled file")
        if question.impossible and task.null_threshold is None:
            raise UserError(
                f"{where} has no answer (is_impossible), as in SQuAD 2.0; set "
                "--config.task.null_threshold=0"
            )


def _by_id(
    questions: Sequence[Question], predictions: Sequence[Answers], of: Callable[[Answers], _Value]
) -> dict[str, _Value]:
    return {one.id: of(found) for one, found in zip(questions, predictions, strict=True)}


def _null_score(answers: Answers) -> float:
    return min(answers.null_score, _NO_TEXT)


def _n_best(task: TaskConfig, answers: Answers) -> list[dict[str, Any]]:
    """Returns the best answers, the best first; "" is among them where it may be predicted."""
    found = [
        {"text": one.text, "probability": one.probability, "score": one.score, "start": one.start}
        for one in answers.best
    ]
    if task.null_threshold is not None:
        rest = max(0.0, 1 - sum(one.probability for one in answers.best))
        score = answers.best[0].score + answers.null_score if answers.best else None
        found.append({"text": "", "probability": rest, "score": score, "start": None})
    return sorted(found, key=lambda one: -one["probability"])


QUESTION_ANSWERING: Final = QuestionTask()
