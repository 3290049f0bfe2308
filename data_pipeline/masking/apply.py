"""Masks one example of a row in place, by the rule of its mode."""

from typing import NamedTuple

import numpy as np

from bert_jax.data_pipeline.masking.ngrams import choose_ngrams
from bert_jax.data_pipeline.masking.replace import replace_span, replace_tokens
from bert_jax.data_pipeline.masking.roberta import choose_positions
from bert_jax.data_pipeline.masking.spans import choose_spans
from bert_jax.data_pipeline.masking.spec import ROBERTA, SPAN, SPAN_TARGETS, TOKEN, WHOLE_WORD
from bert_jax.data_pipeline.masking.tokens import choose_tokens
from bert_jax.data_pipeline.masking.words import choose_words
from bert_jax.data_pipeline.random.counter_rng import fold_key
from bert_jax.data_pipeline.random.numba_jit import compiled


class Scratch(NamedTuple):
    """Scratch memory for the maskable tokens of one example: all but the special tokens, and in
    mode `roberta` all.

    Attributes:
        places: int32 [S], position of each token in the row.
        opens: uint8 [S], 1 where a word begins, 2 where a segment begins too (if the mode uses
            segments); filled only for modes that need words.
        marked: uint8 [S], zeros between examples.
        words: int32 [S + 1].
        order, chosen: int32 [S].
    """

    places: np.ndarray
    opens: np.ndarray
    marked: np.ndarray
    words: np.ndarray
    order: np.ndarray
    chosen: np.ndarray


class Slots(NamedTuple):
    """One row of each array of `BatchArrays` with a column per prediction."""

    positions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    span_left: np.ndarray
    span_right: np.ndarray
    span_offsets: np.ndarray
    span_weights: np.ndarray


@compiled
def empty_scratch(size):
    """Allocates scratch memory for examples of at most `size` tokens."""
    return Scratch(
        np.empty(size, np.int32), np.empty(size, np.uint8), np.zeros(size, np.uint8),
        np.empty(size + 1, np.int32), np.empty(size, np.int32), np.empty(size, np.int32),
    )  # fmt: skip


@compiled
def budget(rule, length, count):
    """Returns the maximum predictions of an example of `length` tokens, `count` of them maskable.
    At rates near 1 it may exceed `count`; n-grams account for that when they search for one that
    fits."""
    return rule.budgets[count if rule.mode == SPAN else length]


@compiled
def mask_example(key, rule, scratch, count, wanted, ids, slots, slot):
    """Masks `wanted` of the tokens in `scratch`, or fewer if whole words or `count` allow no more,
    or if RoBERTa's number is rounded down; returns the next free slot.

    Args:
        key: uint64, key of this example.
        count: tokens in `scratch`.
        ids: int32, the row, changed in place.
        slots: filled from index `slot`, in position order.
    """
    choose, replace = fold_key(key, 0), fold_key(key, 1)
    if rule.mode == SPAN:
        choose_spans(choose, count, scratch.opens, wanted, rule.length_limits, scratch.marked)
        stop = _emit(scratch, wanted, ids, slots, slot)
        _replace_spans(replace, rule, scratch, count, ids, slots, slot, stop)
        return stop
    taken = min(wanted, count)
    if rule.mode == TOKEN:
        choose_tokens(choose, count, taken, scratch.order, scratch.marked, scratch.chosen)
    elif rule.mode == ROBERTA:
        taken = choose_positions(
            choose, fold_key(key, 3), count, taken, rule.fewer_limits[count], scratch.order,
            scratch.marked, scratch.chosen,
        )  # fmt: skip
    else:
        words = _find_words(scratch, count)
        if rule.mode == WHOLE_WORD:
            taken = choose_words(
                choose, scratch.words, words, wanted, scratch.order, scratch.marked, scratch.chosen
            )
        else:
            taken = choose_ngrams(
                choose, fold_key(key, 2), scratch.words, words, scratch.opens, wanted,
                rule.length_limits, scratch.order, scratch.marked, scratch.chosen,
            )  # fmt: skip
    stop = _emit(scratch, taken, ids, slots, slot)
    replace_tokens(replace, ids, scratch.places, scratch.chosen, taken, rule)
    return stop


@compiled
def _find_words(scratch, count):
    """Fills `scratch.words` from `scratch.opens`; returns the number of words."""
    words = 0
    for k in range(count):
        scratch.words[words] = k
        words += scratch.opens[k] != 0
    scratch.words[words] = count
    return words


@compiled
def _emit(scratch, taken, ids, slots, slot):
    """Writes the marked tokens into slots, unmarks them, and records them in `scratch.order`;
    returns the next free slot."""
    at = k = np.int64(0)
    while at < taken:
        position = scratch.places[k]
        scratch.order[at] = k
        slots.positions[slot + at] = position
        slots.labels[slot + at] = ids[position]
        slots.weights[slot + at] = 1.0
        at += scratch.marked[k]
        scratch.marked[k] = 0
        k += 1
    return slot + taken


@compiled
def _replace_spans(key, rule, scratch, count, ids, slots, slot, stop):
    """Replaces the masked tokens, one draw per run of adjacent ones, and records the boundaries."""
    n = np.int64(0)
    first = slot
    while first < stop:
        start = scratch.order[first - slot]
        last = first
        while last + 1 < stop and scratch.order[last + 1 - slot] == start + last + 1 - first:
            if scratch.opens[scratch.order[last + 1 - slot]] == 2:
                break
            last += 1
        n = replace_span(key, n, ids, slots.positions, first, last + 1, rule)
        if len(slots.span_left):
            after = start + last + 1 - first
            inside = scratch.opens[start] != 2 and after < count and scratch.opens[after] != 2
            for k in range(first, last + 1):
                used = inside and k - first < SPAN_TARGETS
                slots.span_left[k] = slots.positions[first] - 1 if used else 0
                slots.span_right[k] = slots.positions[last] + 1 if used else 0
                slots.span_offsets[k] = k - first if used else 0
                slots.span_weights[k] = 1.0 if used else 0.0
        first = last + 1
