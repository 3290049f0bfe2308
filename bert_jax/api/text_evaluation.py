"""`bert-jax evaluate --model`: the pseudo-perplexity of a text, and how often a model prefers the
good sentence of a minimal pair; see metrics/pseudo_likelihood.py."""

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from etils import epath

from bert_jax.ablation.intervals import Interval, wilson
from bert_jax.api.evaluation_table import Evaluation, Row, Value
from bert_jax.api.masked_scores import ScoredText, Scorer, read_masked_model
from bert_jax.errors import UserError, count
from bert_jax.finetune.tasks.minimal_pairs import (
    GROUPS,
    MinimalPair,
    Sentence,
    read_minimal_pairs,
)
from bert_jax.finetune.tasks.rows import numbered_lines
from bert_jax.metrics.pseudo_likelihood import Method, perplexity, preferences

_BY_LINES: Final = "Student's t over the lines, weighted by their tokens"
_BY_PAIRS: Final = "Wilson's, over the pairs"
_MASKED: Final[dict[Method, str]] = {
    "token": "each token masked one at a time",
    "word_l2r": "each token masked with those of its word that follow",
}


def evaluate_text(model: str, path: epath.PathLike) -> Evaluation:
    """Returns the pseudo-perplexity of a file with a text on every line, and the mean of -log p; a
    blank line is none.

    Args:
        model: as `read_masked_model` takes it.

    Raises:
        UserError: the model cannot be read or predicts no masked tokens, the file cannot be read or
            has no text, or as `Scorer.read`.
    """
    sentences = [
        Sentence(line.rstrip("\n"), str(path), row)
        for row, line in numbered_lines(path)
        if line.strip()
    ]
    if not sentences:
        raise UserError(f"{path}: no text; give a file with a text on every line")
    read = read_masked_model(model)
    scorer = Scorer(read)
    texts = scorer.read(sentences)
    tokens = np.array([len(text.ids) for text in texts])
    mean, margin = perplexity(scorer.log_likelihoods(texts), tokens)
    ends = Interval(max(mean - margin, 0.0), mean + margin) if math.isfinite(margin) else None
    total = int(tokens.sum())
    rows = [
        Row("pseudo-perplexity", read.source, total, Value(_exp(mean), ends and _exps(ends)), None),
        Row("-log p of a token, nats", read.source, total, Value(mean, ends), None),
    ]
    what = f"{count(total, 'token')} in {count(len(texts), 'line')}, {_MASKED['token']}"
    return Evaluation(str(path), what, _BY_LINES, rows, _notes(scorer, texts))


def evaluate_pairs(model: str, path: epath.PathLike, method: Method = "token") -> Evaluation:
    """Returns how often the good sentence of a minimal pair has the higher pseudo-log-likelihood,
    of all pairs and of each phenomenon; a tie is half.

    Args:
        model: as `read_masked_model` takes it.
        path: as `read_minimal_pairs` takes it.

    Raises:
        UserError: the model cannot be read or predicts no masked tokens, or as
            `read_minimal_pairs` and `Scorer.read`.
    """
    pairs = read_minimal_pairs(path)
    read = read_masked_model(model)
    scorer = Scorer(read)
    texts = scorer.read([one for pair in pairs for one in (pair.good, pair.bad)])
    scores = scorer.log_likelihoods(texts, method).reshape(-1, 2)
    preferred = preferences(scores[:, 0], scores[:, 1])
    rows = []
    for name, chosen in _groups(pairs):
        share, n = float(preferred[chosen].mean()), len(chosen)
        rows.append(Row(name, read.source, n, Value(share, wilson(share, n)), None))
    what = f"{count(len(pairs), 'pair')}, {_MASKED[method]}"
    notes = _notes(scorer, texts)
    if ties := int((preferred == 0.5).sum()):
        notes.append(f"ties, each counted as half: {ties:,}")
    return Evaluation(str(path), what, _BY_PAIRS, rows, notes)


def _groups(pairs: list[MinimalPair]) -> Iterator[tuple[str, list[int]]]:
    """Yields the name and the pairs of each row: all of them, then those of each phenomenon."""
    yield "accuracy", [*range(len(pairs))]
    for kind in GROUPS:
        by_name: dict[str, list[int]] = {}
        for place, pair in enumerate(pairs):
            by_name.setdefault(pair.groups[kind], []).append(place)
        by_name.pop("", None)
        for name, chosen in sorted(by_name.items()):
            yield f"accuracy, {kind} {name}", chosen


def _notes(scorer: Scorer, texts: list[ScoredText]) -> list[str]:
    unknown = scorer.unknown(texts)
    return [f"tokens that the vocabulary lacks, scored as unknown: {unknown:,}"] if unknown else []


def _exps(interval: Interval) -> Interval:
    return Interval(*map(_exp, interval))


def _exp(value: float) -> float:
    """Returns exp, infinity where that is no float."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
