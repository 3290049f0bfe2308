"""Packs the tokens of texts into rows of few lengths, which the encoder reads in batches.

A row holds several whole texts, each with its own positions and attention, so that little padding
is computed and few shapes are compiled.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bert_jax.data_pipeline.plan.packing import Limits, pack
from bert_jax.parallel.local_devices import padded, power_of_two, rounded_up

# Attention takes as long as the square of a row's length, so a text is in a row of the shortest of
# these or of the model's maximum that holds it, or fills a longer one. A batch of little text is
# one row, which may be shorter.
_LENGTHS = (128, 256, 512, 2048)
_FILLED = 0.9  # of the positions that long texts leave empty; more would need rows of their own
_SHORTEST = 16
_TOKENS = 8  # of a row for each place for a text


class Rows(NamedTuple):
    """A batch: B rows of S positions, with places for N texts in each."""

    ids: np.ndarray  # int32 [B, S]
    examples: np.ndarray  # int32 [B, S]: 1 to N, the place of the text in its row; 0 is padding
    positions: np.ndarray  # int32 [B, S], from 0 in each text
    starts: np.ndarray  # int32 [B, N]: position of the first token
    texts: np.ndarray  # int64 [B, N]: index of the text; -1 where there is none


def text_rows(
    tokens: Sequence[Sequence[int]], longest: int, pad: int, batch_size: int, devices: int
) -> Iterator[Rows]:
    """Yields batches that hold every text once.

    Args:
        tokens: of each text, `longest` at most.
        longest: row of the model.
        batch_size: rows of 128 tokens in a batch, fewer of longer ones.
        devices: each has an equal number of a batch's rows, for which these are rounded up.
    """
    sizes = np.array([len(text) for text in tokens], np.int64)
    left = np.ones(len(tokens), bool)
    limits = sorted({0, *(min(length, longest) for length in (*_LENGTHS, longest))})
    for below, limit in reversed([*pairwise(limits)]):
        chosen = np.flatnonzero(left & (sizes > below))
        if not len(chosen):
            continue
        if below:  # these need long rows; shorter texts fill what they leave empty
            shorter = np.flatnonzero(left & (sizes <= below))
            room = _FILLED * _room(sizes[chosen], limit)
            chosen = np.union1d(chosen, shorter[np.cumsum(sizes[shorter]) <= room])
        left[chosen] = False
        total, most = int(sizes[chosen].sum()), int(sizes[chosen].max())
        length = min(max(power_of_two(max(most, min(total, limit))), _SHORTEST), limit)
        rows = max(1, batch_size * _LENGTHS[0] // max(length, _LENGTHS[0]))
        most_rows = rounded_up(rows, devices)
        for batch in _batches(sizes[chosen], length, most_rows):
            made = _empty(padded(len(batch), most_rows, devices), length, _places(length), pad)
            for row, members in enumerate(chosen[texts] for texts in batch):
                _fill_row(made, row, [(text, tokens[text]) for text in members.tolist()])
            yield made


def _room(sizes: np.ndarray, length: int) -> int:
    """Returns the number of empty positions in the rows of this length that hold some texts."""
    counts, _ = _pack(sizes, length)
    return len(counts) * length - int(sizes.sum())


def _places(length: int) -> int:
    """Returns the number of places for texts in a row."""
    return max(1, length // _TOKENS)


def _pack(sizes: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the number of texts in each row of this length, and the texts row by row."""
    limits = Limits(tokens=length, predictions=1, examples=_places(length))
    no_predictions = np.zeros(length + 1, np.int64)
    return pack(sizes.astype(np.uint32), no_predictions, limits, np.uint64(0))


def _batches(sizes: np.ndarray, length: int, rows: int) -> Iterator[list[np.ndarray]]:
    """Yields the texts of each row, in batches of that many rows; the last is smaller."""
    counts, order = _pack(sizes, length)
    ends = np.cumsum(counts)
    texts = [order[end - count : end] for end, count in zip(ends, counts, strict=True)]
    for first in range(0, len(texts), rows):
        yield texts[first : first + rows]


def _empty(rows: int, length: int, places: int, pad: int) -> Rows:
    zeros = np.zeros((rows, length), np.int32)
    return Rows(
        ids=np.full_like(zeros, pad),
        examples=zeros.copy(),
        positions=zeros.copy(),
        starts=np.zeros((rows, places), np.int32),
        texts=np.full((rows, places), -1, np.int64),
    )


def _fill_row(rows: Rows, row: int, members: Sequence[tuple[int, Sequence[int]]]) -> None:
    start = 0
    for place, (text, tokens) in enumerate(members):
        own = slice(start, start + len(tokens))
        rows.ids[row, own] = tokens
        rows.examples[row, own] = place + 1
        rows.positions[row, own] = np.arange(len(tokens))
        rows.starts[row, place], rows.texts[row, place] = start, text
        start += len(tokens)
