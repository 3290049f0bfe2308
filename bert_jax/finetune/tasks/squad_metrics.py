"""The official rules of SQuAD 2.0, for 1.1, too: exact match and F1 over the words of an answer.

Ported from evaluate-v2.0.py; no library on the index has it without code that is downloaded.
`scores` equals `squad_evaluate` of transformers' `squad_metrics`. For answers with words
evaluate-v1.1.py has the same rules; of nothing but articles and punctuation it counts the true
answers, too, and F1 is 0 there.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from bert_jax.errors import UserError, count
from bert_jax.finetune.tasks.labeled_examples import Question

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION: Final = frozenset(string.punctuation)


def normalized(answer: str) -> str:
    """Returns an answer in lower case, without punctuation and articles, words joined by spaces."""
    bare = "".join(c for c in answer.lower() if c not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact(answer: str, predicted: str) -> int:
    """Returns 1 if two answers are equal once normalized, else 0."""
    return int(normalized(answer) == normalized(predicted))


def f1(answer: str, predicted: str) -> float:
    """Returns the F1 of a prediction's words; if either has none, 1 if both have none, else 0."""
    words, guesses = normalized(answer).split(), normalized(predicted).split()
    if not words or not guesses:
        return float(words == guesses)
    common = (Counter(words) & Counter(guesses)).total()
    if not common:
        return 0.0
    precision, recall = common / len(guesses), common / len(words)
    return 2 * precision * recall / (precision + recall)


def scores(
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    null_scores: Mapping[str, float] | None = None,
    *,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Returns the scores, in percent, of the predicted answers; "" predicts that there is none.

    Args:
        predictions: id -> answer; the best over all true answers counts.
        null_scores: id -> score of there being no answer; None is 0 for every question. With them,
            the result has the best threshold and what it gives (`best_…`).
        threshold: a question with a higher null score is taken as one without an answer.

    Returns:
        exact, f1, total; the same for questions with an answer (`HasAns_…`) and without one
        (`NoAns_…`), where there are any; the names are those of the official script.

    Raises:
        UserError: there are no questions, or a question has no prediction.
    """
    if missing := [question.id for question in questions if question.id not in predictions]:
        first = f"the first is {missing[0][:60]!r}"
        raise UserError(f"no prediction for {count(len(missing), 'question')}; {first}")
    if not questions:
        raise UserError("no questions to score")
    null = null_scores or {question.id: 0.0 for question in questions}
    raw = {q.id: best(q, predictions[q.id]) for q in questions}
    answered = {q.id: bool(q.answers) for q in questions}
    final = {
        name: pair if null[name] <= threshold else (float(not answered[name]),) * 2
        for name, pair in raw.items()
    }
    result = _means("", list(final.values()))
    for prefix, wanted in (("HasAns_", True), ("NoAns_", False)):
        chosen = [pair for name, pair in final.items() if answered[name] is wanted]
        result |= _means(prefix, chosen) if chosen else {}
    if null_scores:
        for place, name in enumerate(("exact", "f1")):
            values = {key: pair[place] for key, pair in raw.items()}
            highest, limit = _best_threshold(predictions, values, null, answered)
            result |= {f"best_{name}": highest, f"best_{name}_thresh": limit}
    return result


def best(question: Question, predicted: str) -> tuple[float, float]:
    """Returns exact match and F1 (0 to 1), each with the true answer that gives most; answers of
    nothing but punctuation and articles do not count."""
    answers = [text for text, _ in question.answers if normalized(text)] or [""]
    return (
        float(max(exact(text, predicted) for text in answers)),
        max(f1(text, predicted) for text in answers),
    )


def _means(prefix: str, pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    total = len(pairs)
    return {
        f"{prefix}exact": 100.0 * sum(pair[0] for pair in pairs) / total,
        f"{prefix}f1": 100.0 * sum(pair[1] for pair in pairs) / total,
        f"{prefix}total": total,
    }


def _best_threshold(
    predictions: Mapping[str, str],
    values: Mapping[str, float],
    null: Mapping[str, float],
    answered: Mapping[str, bool],
) -> tuple[float, float]:
    """Returns the best score in percent, and the null score up to which answers are given for it.

    Starts with no answer to any question and adds questions in the order of their null scores; a
    tie keeps the lower threshold.
    """
    current = highest = float(sum(not has for has in answered.values()))
    limit = 0.0
    for name in sorted(null, key=lambda key: null[key]):
        if name not in values:
            continue
        current += values[name] if answered[name] else -bool(predictions[name])
        if current > highest:
            highest, limit = current, null[name]
    return 100.0 * highest / len(values), limit
