"""Samples the number of visits to each document per epoch: source weights, language smoothing.

A document of source s and language l is visited w_s · f_l times in expectation: the integer part
always, and once more with the fractional part as probability, drawn per document and epoch. w_s is
the source's weight. f_l = (p_l**a / sum_k p_k**a) / p_l gives language l a share of all tokens
proportional to p_l**a, where p_l is its share after the source weights (exponentially smoothed
weighting of multilingual BERT, a = 0.7:
github.com/google-research/bert/blob/master/multilingual.md). The expected number of tokens per
epoch does not depend on a.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_jax.data_pipeline.plan.plan_settings import MOST_VISITS
from bert_jax.data_pipeline.random.counter_rng import chance, draw, fold_key, threshold
from bert_jax.data_pipeline.random.numba_jit import compiled
from bert_jax.errors import UserError, nearest

if TYPE_CHECKING:
    from bert_jax.data_pipeline.store.split import Split


def check_sources(
    split: "Split", source_weights: Mapping[str, float], sources: Sequence[str]
) -> None:
    """Raises UserError for a weight of an unknown source, or of one without text in the split.

    Args:
        source_weights: weight by source name.
        sources: names of the split's sources, in the order of their indices.
    """
    unknown = sorted(set(source_weights) - set(sources))
    if unknown:
        hint = nearest(unknown[0], sources)
        raise UserError(f'config.data.source_weights: no source is called "{unknown[0]}"{hint}')
    counts = np.bincount(split.document_source, minlength=len(sources))
    for name, documents in zip(sources, counts.tolist(), strict=False):
        if source_weights.get(name) and not documents:
            raise UserError(
                f'config.data.source_weights: source "{name}" has no text in the "{split.name}" '
                "split; leave it out, or add documents"
            )


def expected_visits(
    split: "Split",
    document_tokens: np.ndarray,
    source_weights: Mapping[str, float],
    language_smoothing: float,
    sources: Sequence[str],
) -> np.ndarray:
    """Returns the expected visits to each document in an epoch: float64 [D].

    Args:
        document_tokens: int64 [D], tokens per document.
        source_weights: weight by source name; 1 for a source without an entry.
        sources: names of the split's sources, in the order of their indices.

    Raises:
        UserError: no document left, or too many visits.
    """
    names = list(sources) + [""] * (int(split.document_source.max(initial=0)) + 1 - len(sources))
    weight = np.array([source_weights.get(name, 1.0) for name in names])[split.document_source]
    if not np.any(weight > 0):
        raise UserError(
            f'config.data.source_weights: every source of the "{split.name}" split has weight 0; '
            "give one a positive weight"
        )
    if language_smoothing == 1.0:
        return weight
    tokens = np.bincount(split.document_language, weight * document_tokens)
    visits = weight * smoothing(tokens, language_smoothing)[split.document_language]
    if visits.max() > MOST_VISITS:
        raise UserError(
            f"config.data.language_smoothing={language_smoothing:g}: the rarest language would be "
            f"read {visits.max():,.0f} times per epoch, above {MOST_VISITS:,}; use a value nearer 1"
        )
    return visits


def smoothing(tokens: np.ndarray, exponent: float) -> np.ndarray:
    """Returns the sampling factor f_l of each language, float64 [L], from its tokens [L]."""
    share = tokens / tokens.sum()
    present = share > 0
    powers = np.where(present, share, 1.0) ** exponent * present
    return np.divide(powers / powers.sum(), share, out=np.ones_like(share), where=present)


def draw_visits(expected: np.ndarray, key: np.uint64) -> np.ndarray:
    """Returns the visits to each document in one epoch: int32 [D], `expected` rounded randomly."""
    visits = np.floor(expected).astype(np.int32)
    rest = expected - visits
    parts, place = np.unique(rest, return_inverse=True)
    limits = np.array([threshold(part) for part in parts.tolist()], np.uint64)
    _round_up(key, limits[place], visits)
    return visits


@compiled
def _round_up(key, limits, visits):
    for document in range(len(visits)):
        visits[document] += chance(draw(fold_key(key, document), 0), limits[document])
