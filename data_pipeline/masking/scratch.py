"""The memory that the functions of a kind of masking share while they mask one example."""

from typing import NamedTuple

import numpy as np

from bert_jax.data_pipeline.random.counter_rng import draw
from bert_jax.data_pipeline.random.numba_jit import compiled


class Scratch(NamedTuple):
    """Scratch memory for the maskable tokens of one example: all but the special tokens, or with
    `Mode.masks_specials` all.

    Attributes:
        places: int32 [S], position of each token in the row.
        word_starts, segment_starts: uint8 [S], 1 where a token begins a word by the vocabulary, and
            where it begins a segment; both at the first token. Only with `Mode.needs_words`.
        weights: int64 [S], of each token. Only with `Mode.id_weights`.
        marked: uint8 [S], how often each token is selected: 0 or 1, or more with `Mode.repeats`;
            zeros between examples.
        words: int32 [S + 1], the first token of each word and the end of the last.
        order, chosen: int32 [S]; `chosen` lists the selected tokens in the order of selection.
    """

    places: np.ndarray
    word_starts: np.ndarray
    segment_starts: np.ndarray
    weights: np.ndarray
    marked: np.ndarray
    words: np.ndarray
    order: np.ndarray
    chosen: np.ndarray


@compiled
def empty_scratch(size):
    """Allocates scratch memory for examples of at most `size` tokens."""
    return Scratch(
        np.empty(size, np.int32), np.empty(size, np.uint8), np.empty(size, np.uint8),
        np.empty(size, np.int64), np.zeros(size, np.uint8), np.empty(size + 1, np.int32),
        np.empty(size, np.int32), np.empty(size, np.int32),
    )  # fmt: skip


@compiled
def fill_slots(scratch, taken, out, line, slot):
    """Writes the marked tokens into the prediction slots of row `line` from `slot` on, in position
    order, as often as each is marked; unmarks them, and records them in `scratch.order`."""
    ids, positions = out.input_ids[line], out.masked_positions[line]
    labels, weights = out.masked_labels[line], out.masked_weights[line]
    at = k = np.int64(0)
    while at < taken:
        position = scratch.places[k]
        scratch.order[at] = k
        positions[slot + at] = position
        labels[slot + at] = ids[position]
        weights[slot + at] = 1.0
        times = np.int64(scratch.marked[k])
        for again in range(at + 1, at + times):
            scratch.order[again] = k
            positions[slot + again] = position
            labels[slot + again] = ids[position]
            weights[slot + again] = 1.0
        at += times
        scratch.marked[k] = 0
        k += 1


@compiled
def fill_draw_keys(key, taken, out, line, slot, at):
    """Writes the keys of `taken` filled slots: each the upper half of a draw of its position.

    key: uint64, stream 4 of the example.
    at: column of the example's first token, since a key does not depend on where the example is.
    """
    for k in range(slot, slot + taken):
        bits = draw(key, out.masked_positions[line, k] - at)
        out.draw_keys[line, k] = np.uint32(bits >> np.uint64(32))
