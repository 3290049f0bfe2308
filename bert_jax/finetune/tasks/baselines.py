"""Baselines without a pretrained model: majority class, bag of words, shared words."""

import re
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from bert_jax.errors import UserError

_ITERATIONS = 1000
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"\w+")
_TOKEN = r"(?u)\b\w+\b|[^\w\s]"
_MISSING = "baselines need scikit-learn, which is not installed; pip install 'bert-jax[finetune]'"


def majority(labels: Sequence[float], count: int, *, regression: bool) -> np.ndarray:
    """Returns the most frequent class of the training labels, or their mean, `count` times."""
    if regression:
        return np.full(count, float(np.mean(labels)))
    return np.full(count, int(np.bincount(np.asarray(labels, np.int64)).argmax()))


def bag_of_words(
    texts: Sequence[tuple[str, ...]],
    labels: Sequence[float],
    others: Sequence[tuple[str, ...]],
    *,
    regression: bool,
) -> np.ndarray:
    """Returns the predictions for `others` of a logistic regression, for scores a ridge regression,
    on the counts of words; each text of a pair has counts of its own.

    Raises:
        UserError: scikit-learn is not installed.
    """
    fitted = _fit(texts, labels, others, regression=regression)
    if fitted is None:
        return majority(labels, len(others), regression=regression)
    model, new = fitted
    return np.asarray(model.predict(new))


def choice_by_words(
    choices: Sequence[tuple[str, ...]], right: Sequence[int], others: Sequence[tuple[str, ...]]
) -> np.ndarray:
    """Returns the choice in each of `others` whose words make it most probably a right one: by a
    logistic regression, which does not see what the choices are for; raises as `bag_of_words`."""
    texts, new = ([(choice,) for one in some for choice in one] for some in (choices, others))
    is_right = [
        i == label for one, label in zip(choices, right, strict=True) for i in range(len(one))
    ]
    fitted = _fit(texts, is_right, new, regression=False)
    scores = np.zeros(len(new)) if fitted is None else fitted[0].decision_function(fitted[1])
    return np.asarray(scores.reshape(len(others), -1).argmax(1))


def _fit(
    texts: Sequence[tuple[str, ...]],
    labels: Sequence[float],
    others: Sequence[tuple[str, ...]],
    *,
    regression: bool,
) -> tuple[Any, Any] | None:
    """Returns a regression on the counts of words and the counts of `others`; None if there is one
    label only, or no word."""
    try:
        from scipy import sparse
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import LogisticRegression, Ridge
    except ImportError:
        raise UserError(_MISSING) from None
    if len(set(labels)) == 1:  # nothing to separate
        return None
    parts: list[Any] = []
    for train, other in zip(zip(*texts, strict=True), zip(*others, strict=True), strict=True):
        counts = CountVectorizer(token_pattern=_TOKEN)
        try:
            parts.append((counts.fit_transform(train), counts.transform(other)))
        except ValueError:  # no words at all
            continue
    if not parts:
        return None
    known, new = (sparse.hstack(matrices).tocsr() for matrices in zip(*parts, strict=True))
    model = Ridge() if regression else LogisticRegression(max_iter=_ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(known, labels), new


def is_installed() -> bool:
    """Returns whether there is scikit-learn, which most baselines need."""
    return find_spec("sklearn") is not None


def word_vectors(known: Sequence[str], texts: Sequence[str]) -> Any:
    """Returns the counts of words of texts, weighted by how rare they are in `known` (TF-IDF) and
    of length 1, a sparse matrix [T, W]; None if there is no word. UserError as `bag_of_words`."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ImportError:
        raise UserError(_MISSING) from None
    counts = TfidfVectorizer(token_pattern=_TOKEN)
    try:
        return counts.fit(known).transform(texts)
    except ValueError:  # no words at all
        return None


def most_shared_words(text: str, candidates: Sequence[str]) -> int:
    """Returns the index of the candidate that has most words of a text, the first of them."""
    asked = set(_WORD.findall(text.lower()))
    shared = [len(asked.intersection(_WORD.findall(one.lower()))) for one in candidates]
    return shared.index(max(shared))


def share_of_words(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    """Returns the words of both texts of a pair by those of either, 0 without any: Jaccard, [N]."""
    found = ([set(_WORD.findall(text.lower())) for text in pair] for pair in pairs)
    return np.array([len(a & b) / max(len(a | b), 1) for a, b in found], np.float64)


def nearest_sentence(question: str, context: str) -> str:
    """Returns the sentence of a context that has most words of the question, the first of them."""
    sentences = _SENTENCE_END.split(context.strip())
    return sentences[most_shared_words(question, sentences)]
