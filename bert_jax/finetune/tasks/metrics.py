"""Metrics of tasks, computed by scikit-learn, scipy and seqeval.

A metric that is not defined, such as a correlation with constant labels, is None.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final

import numpy as np

from bert_jax.errors import UserError

Values = Sequence[int] | Sequence[float] | np.ndarray
Tags = Sequence[Sequence[str]]  # of each sentence, such as B-PER


def _accuracy(labels: np.ndarray, predictions: np.ndarray) -> float | None:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(labels, predictions)) if len(labels) else None


def _f1(labels: np.ndarray, predictions: np.ndarray) -> float | None:
    """F1 of class 1, as in GLUE; undefined if no example has it in either."""
    from sklearn.metrics import f1_score

    if not ((labels == 1) | (predictions == 1)).any():
        return None
    return float(f1_score(labels == 1, predictions == 1, zero_division=0.0))


def _matthews(labels: np.ndarray, predictions: np.ndarray) -> float | None:
    """0 if all predictions are of one class; not defined if all labels are."""
    from sklearn.metrics import matthews_corrcoef

    if _constant(labels):
        return None
    return float(matthews_corrcoef(labels, predictions))


def _pearson(labels: np.ndarray, predictions: np.ndarray) -> float | None:
    from scipy.stats import pearsonr

    if _constant(labels) or _constant(predictions):
        return None
    return _defined(pearsonr(labels, predictions).statistic)


def _spearman(labels: np.ndarray, predictions: np.ndarray) -> float | None:
    from scipy.stats import spearmanr

    if _constant(labels) or _constant(predictions):
        return None
    return _defined(spearmanr(labels, predictions).statistic)


def _constant(values: np.ndarray) -> bool:
    """Returns whether all values are nearly equal, too: no correlation with them can be
    computed."""
    if len(values) < 2:
        return True
    spread = np.abs(values - values.mean()).max()
    return bool(spread <= 1e-12 * max(1.0, float(np.abs(values).max())))


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


METRICS: Final[Mapping[str, Callable[[np.ndarray, np.ndarray], float | None]]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}


def measure(
    names: Sequence[str],
    labels: Values,
    predictions: Values,
    parts: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, float | None]:
    """Returns the metrics of these names: of class ids, or of scores for a regression.

    parts: see `Examples.parts`; the names of their metrics, such as accuracy_mismatched, may be
    among those given.

    Raises:
        UserError: scikit-learn is not installed.
    """
    truth, guess = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    assert truth.shape == guess.shape, (truth.shape, guess.shape)
    with _installed():
        found, start = dict[str, float | None](), 0
        for end, count in (parts or {"": len(truth)}).items():
            own = slice(start, start + count)
            for name in names:
                if name in METRICS:
                    found[f"{name}{end}"] = METRICS[name](truth[own], guess[own])
            start += count
        return found


def entities(labels: Tags, predictions: Tags) -> dict[str, float | None]:
    """Returns precision, recall and F1 of entities with the right type and ends, over all types.

    An entity begins with B-, or with I- after O or another type, as in conlleval. Precision is not
    defined where none is predicted, recall where there is none, F1 where both are so.

    Raises:
        UserError: seqeval is not installed.
    """
    with _installed():
        from seqeval.metrics import f1_score, precision_score, recall_score
        from seqeval.metrics.sequence_labeling import get_entities

    truth, guess = [list(tags) for tags in labels], [list(tags) for tags in predictions]
    some, found = bool(get_entities(truth)), bool(get_entities(guess))
    scores = (precision_score, recall_score, f1_score)
    defined = (found, some, some or found)
    values = [
        float(score(truth, guess, zero_division=0)) if is_defined else None
        for score, is_defined in zip(scores, defined, strict=True)
    ]
    return dict(zip(("precision", "recall", "f1"), values, strict=True))


def check_installed() -> None:
    """Raises UserError if a library of the metrics is not installed."""
    with _installed():
        if not all(map(find_spec, ("scipy", "seqeval", "sklearn"))):
            raise ImportError


@contextmanager
def _installed() -> Iterator[None]:
    """Turns a library that is not installed into a UserError."""
    try:
        yield
    except ImportError:
        raise UserError(
            "metrics need scikit-learn, scipy and seqeval, which are not all installed; pip "
            "install 'bert-jax[finetune]'"
        ) from None
