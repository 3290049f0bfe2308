"""`ngram` masking as released with ALBERT (google-research/albert, `create_pretraining_data.py`,
`create_masked_lm_predictions` with whole words and shorter n-grams favoured): words in random
order, from each an n-gram of n words with P(n) proportional to 1/n; a shorter one if that exceeds
the budget; none if one of its words is already masked. At a rate of 0 no token is predicted.

One difference: here an n-gram ends with its segment; ALBERT's may cross a [SEP]. As in ALBERT, the
shuffle and the lengths use separate random streams (there `random` and `numpy.random`).
"""

from fractions import Fraction
from typing import Final

import numpy as np

from bert_jax.data_pipeline.masking.masking_settings import MaskingSettings
from bert_jax.data_pipeline.masking.mode import Mode, round_half_to_even
from bert_jax.data_pipeline.masking.replace import cumulative_limits
from bert_jax.data_pipeline.masking.words import select_words, start_words_at_segments
from bert_jax.data_pipeline.random.numba_jit import compiled


@compiled
def select_ngrams(key, rule, scratch, count, wanted):
    """Selects n-grams of at most `wanted` tokens in total."""
    start_words_at_segments(scratch, count)
    return select_words(key, rule, scratch, count, wanted)


def _wanted(rate: float, size: int) -> int:
    return round_half_to_even(rate, size) if rate else 0


def _length_limits(settings: MaskingSettings, budgets: np.ndarray) -> np.ndarray:
    """The limits of n-grams of 1, 2, … words."""
    return cumulative_limits([Fraction(1, n) for n in range(1, settings.max_ngram + 1)])


MODE: Final = Mode(
    select_ngrams, wanted=_wanted, exact=False, limits=_length_limits, needs_words=True
)
