"""Packs the tokens of texts into rows of few lengths, which the encoder reads in batches.

A row holds several whole texts, each with its own positions and attention, so that little padding
is computed and few shapes are compiled.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bert_jax.data_pipeline.plan.packing import Limits, pack

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
    tokens: Sequence[Sequence[int]], longest: int, pad: int, batch_size: int
) -> Iterator[Rows]:
    """Yields batches that hold every text once.

    Args:
        tokens: of each text, `longest` at most.
        longest: row of the model.
        batch_size: rows of 128 tokens in a batch; fewer of longer ones.
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
        yield from _batches([tokens[i] for i in chosen.tolist()], chosen, length, pad, rows)


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


def _batches(
    tokens: Sequence[Sequence[int]], texts: np.ndarray, length: int, pad: int, most_rows: int
) -> Iterator[Rows]:
    """Yields batches of rows of one length; the last is smaller, a power of two of rows."""
    counts, order = _pack(np.array([len(text) for text in tokens]), length)
    ends = np.cumsum(counts)
    rows = [order[end - count : end] for end, count in zip(ends, counts, strict=True)]
    for first in range(0, len(rows), most_rows):
        batch = rows[first : first + most_rows]
        shape = min(power_of_two(len(batch)), most_rows)
        made = _empty(shape, length, _places(length), pad)
        for row, members in enumerate(batch):
            _fill_row(made, row, [(int(texts[i]), tokens[i]) for i in members])
        yield made


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


def power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
