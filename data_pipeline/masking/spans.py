"""`span` masking as released with SpanBERT (`pretraining/fairseq/data/masking.py:80-150`): spans of
a geometric number of words, each from the start of the word that contains a random token, until the
token budget is used up, which may cut the last span within a word. Spans that overlap or touch
count as one when tokens are replaced and when spans are predicted from their boundaries. The budget
counts tokens without specials, and rounds up (masking.py:99).

A span ends with its segment; in SpanBERT every example is a single segment.
"""

from fractions import Fraction
from typing import Final

import numpy as np

from bert_jax.data_pipeline.masking.masking_settings import SPAN_TARGETS, MaskingSettings
from bert_jax.data_pipeline.masking.mode import Mode, round_up
from bert_jax.data_pipeline.masking.replace import cumulative_limits, drawn, random_id
from bert_jax.data_pipeline.masking.words import start_words_at_segments
from bert_jax.data_pipeline.random.counter_rng import below, chance, draw, fold_key
from bert_jax.data_pipeline.random.numba_jit import compiled

# The original draws a length and an anchor until the anchor is unmasked. After this many rejections
# (one span in 10**13 at a rate of .15) the anchor is drawn from the unmasked tokens: the same
# distribution, but guaranteed to terminate.
REDRAWS: Final = 16


@compiled
def select_spans(key, rule, scratch, count, wanted):
    """Marks exactly `wanted` ≤ `count` tokens, in spans."""
    key, marked = fold_key(key, 0), scratch.marked
    start_words_at_segments(scratch, count)
    masked = n = rejected = 0
    while masked < wanted:
        most = 1 + drawn(draw(key, n), rule.limits)
        k = below(draw(key, n + 1), count)
        n += 2
        if marked[k]:
            rejected += 1
            if rejected < REDRAWS:
                continue
            k = _unmarked(below(draw(key, n), count - masked), marked)
            n += 1
        rejected = 0
        while not scratch.word_starts[k]:
            k -= 1
        words = 0
        while masked < wanted and words < most:
            masked += 1 - marked[k]
            marked[k] = 1
            k += 1
            while masked < wanted and k < count and not scratch.word_starts[k]:
                masked += 1 - marked[k]
                marked[k] = 1
                k += 1
            words += 1
            if k == count or scratch.segment_starts[k]:
                break
    return wanted


@compiled
def _unmarked(rank, marked):
    """Returns the unmarked token with `rank` unmarked tokens before it."""
    k = 0
    while True:
        if not marked[k]:
            if rank == 0:
                return k
            rank -= 1
        k += 1


@compiled
def replace_spans(key, rule, scratch, count, taken, out, line, slot):
    """Replaces the masked tokens, one draw per run of adjacent ones, and records the boundaries."""
    ids, positions, starts = out.input_ids[line], out.masked_positions[line], scratch.segment_starts
    lefts, rights = out.span_left[line], out.span_right[line]
    offsets, weights = out.span_offsets[line], out.span_weights[line]
    n = np.int64(0)
    first, end = slot, slot + taken
    while first < end:
        start = scratch.order[first - slot]
        stop = first + 1
        while stop < end and scratch.order[stop - slot] == start + stop - first:
            if starts[scratch.order[stop - slot]]:
                break
            stop += 1
        n = _replace_span(key, n, ids, positions, first, stop, rule)
        if len(lefts):
            after = start + stop - first
            inside = not starts[start] and after < count and not starts[after]
            for k in range(first, stop):
                used = inside and k - first < SPAN_TARGETS
                lefts[k] = positions[first] - 1 if used else 0
                rights[k] = positions[stop - 1] + 1 if used else 0
                offsets[k] = k - first if used else 0
                weights[k] = 1.0 if used else 0.0
        first = stop


@compiled
def _replace_span(key, n, ids, positions, first, stop, rule):
    """Replaces the tokens of slots [first, stop) all in the same way; returns the index of the next
    draw.

    As in SpanBERT, `pretraining/fairseq/data/masking.py:259-269`: one draw for the span, then, if
    it becomes random, one for the id of each token.
    """
    bits = draw(key, n)
    n += 1
    if chance(bits, rule.mask_limit):
        for k in range(first, stop):
            ids[positions[k]] = rule.mask_id
    elif chance(bits, rule.random_limit):
        for k in range(first, stop):
            ids[positions[k]] = random_id(draw(key, n), rule)
            n += 1
    return n


def _length_limits(settings: MaskingSettings, budgets: np.ndarray) -> np.ndarray:
    """The limits of spans of 1, 2, … words."""
    end = Fraction(settings.span_success)
    return cumulative_limits([end * (1 - end) ** n for n in range(settings.max_span)])


MODE: Final = Mode(
    select_spans, replace_spans, wanted=round_up, limits=_length_limits,
    needs_words=True, counts_specials=False,
)  # fmt: skip
