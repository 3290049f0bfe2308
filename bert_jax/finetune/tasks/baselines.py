"""Baselines without a pretrained model: majority class, bag of words."""

import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError

_ITERATIONS = 1000
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"\w+")


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
    try:
        from scipy import sparse
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import LogisticRegression, Ridge
    except ImportError:
        raise UserError("scikit-learn is not installed: pip install 'bert-jax[finetune]'") from None
    if len(set(labels)) == 1:  # nothing to separate
        return majority(labels, len(others), regression=regression)
    parts: list[Any] = []
    for train, other in zip(zip(*texts, strict=True), zip(*others, strict=True), strict=True):
        counts = CountVectorizer(token_pattern=r"(?u)\b\w+\b|[^\w\s]")
        try:
            parts.append((counts.fit_transform(train), counts.transform(other)))
        except ValueError:  # no words at all
            continue
    if not parts:
        return majority(labels, len(others), regression=regression)
    known, new = (sparse.hstack(matrices).tocsr() for matrices in zip(*parts, strict=True))
    model = Ridge() if regression else LogisticRegression(max_iter=_ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        predicted: np.ndarray = model.fit(known, labels).predict(new)
    return predicted


def nearest_sentence(question: str, context: str) -> str:
    """Returns the sentence of a context that has most words of the question, the first of them."""
    asked = set(_WORD.findall(question.lower()))
    sentences = _SENTENCE_END.split(context.strip())
    return max(sentences, key=lambda one: len(asked.intersection(_WORD.findall(one.lower()))))
