"""A kind of masking: two compiled functions, and numbers for them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_jax.data_pipeline.masking.masking_settings import MaskingSettings
from bert_jax.data_pipeline.masking.replace import replace_tokens


def round_half_to_even(rate: float, size: int) -> int:
    """The predictions of an example of `size` tokens, at least 1: create_pretraining_data.py:369 of
    BERT."""
    return max(1, round(size * rate))


def round_up(rate: float, size: int) -> int:
    """The predictions of an example of `size` tokens, as in SpanBERT and at most in RoBERTa."""
    return math.ceil(size * rate)


@dataclass(frozen=True)
class Mode:
    """A kind of masking.

    Attributes:
        select: compiled; `select(key, rule, scratch, count, wanted)` marks at most `wanted` of the
            `count` tokens in `scratch.marked`, lists them in `scratch.chosen` if `replace` needs
            the order, and returns their number. key: uint64, of the example.
        replace: compiled; `replace(key, rule, scratch, count, taken, out, line, slot)` replaces
            the `taken` tokens; see `replace_tokens`.
        wanted: (rate, size) -> the predictions of an example of `size` tokens, without a maximum.
        exact: `select` selects `wanted` tokens if there are as many; else it may select fewer.
        limits: (settings, `MaskingSpec.budgets`) -> `Rule.limits`, numbers for `select`: uint64.
        id_weights: (settings, occurrences of each id in the training text, int64 [V]) -> a weight
            of each id for `scratch.weights`, int64 [V], at most 2**44; None: not needed. Special
            ids then weigh 0, unless `masks_specials`.
        repeats: a token may be selected several times, and then takes as many prediction slots.
        needs_words: `scratch.word_starts` and `.segment_starts` are filled.
        counts_specials: the size of an example includes its special tokens.
        masks_specials: special tokens may be selected.
        draws_specials: a random replacement may be any special id, not only [MASK].
    """

    select: Any
    replace: Any = replace_tokens
    wanted: Callable[[float, int], int] = round_half_to_even
    exact: bool = True
    limits: Callable[[MaskingSettings, np.ndarray], np.ndarray] = lambda settings, budgets: (
        np.zeros(0, np.uint64)
    )
    id_weights: Callable[[MaskingSettings, np.ndarray], np.ndarray] | None = None
    repeats: bool = False
    needs_words: bool = False
    counts_specials: bool = True
    masks_specials: bool = False
    draws_specials: bool = True
