"""Co-occurrence counts: how often two entries of the vocabulary stand near each other.

    C[a, b] = sum over the pairs of an a and a b that stands o tokens after it, of the weight of o

with the weights 1/|o| for o = -window ... window, or others. Windows cross the ends of sentences,
never those of documents. The sums are taken in the order of the text, in float64, one row by one
thread, so they do not depend on the number of threads.
"""

import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from bert_jax.data_pipeline.analysis.baselines import counted_tokens, tokens_per_document
from bert_jax.data_pipeline.random.numba_jit import compiled
from bert_jax.data_pipeline.store.split import Split

_BLOCKS = 256  # of rows: what one thread does at a time


@dataclass(frozen=True)
class Text:
    """The text of a split, and where each entry of the vocabulary stands in it.

    Attributes:
        tokens: int32, -1 before and after each document.
        counts: of each entry, int64 [V].
        places: in `tokens`, of all entries in turn, int32.
    """

    tokens: np.ndarray
    counts: np.ndarray
    places: np.ndarray


@dataclass(frozen=True)
class Cooccurrences:
    """A sparse matrix [V, V], by rows; symmetric if offsets o and -o weigh the same.

    Attributes:
        counts: of each entry in the text that was read, int64 [V].
        offsets: where the row of each entry begins, int64 [V + 1].
        others: the columns of the non-zero elements, int32 [N], ascending in each row.
        weights: their values C[a, b], float32 [N].
        sums: of each row, float64 [V].
    """

    counts: np.ndarray
    offsets: np.ndarray
    others: np.ndarray
    weights: np.ndarray
    sums: np.ndarray


def window_weights(window: int) -> dict[int, float]:
    """Returns the weight of each offset in a window with this number of tokens on each side."""
    return {offset: 1.0 / abs(offset) for offset in range(-window, window + 1) if offset}


def text_of(split: Split, vocab_size: int, most_tokens: int) -> Text:
    """Returns the text of a split; of a larger one than `most_tokens`, this many tokens of evenly
    spread documents. Memory: 8 bytes per token."""
    taken = counted_tokens(split, most_tokens)
    tokens = _text(np.asarray(split.tokens), tokens_per_document(split), taken)
    return Text(tokens, *_by_entry(tokens, vocab_size))


def count_cooccurrences(
    text: Text, weights: Mapping[int, float], pool: ThreadPoolExecutor
) -> Cooccurrences:
    """Returns the co-occurrences in a text. Memory: up to 16 bytes per non-zero element.

    weights: offset in tokens -> what a pair at this offset counts.
    """
    starts = np.concatenate([[0], np.cumsum(text.counts)])
    farthest = max(map(abs, weights))
    by_side = np.zeros((2, farthest + 1))  # before, after
    for offset, weight in weights.items():
        by_side[int(offset > 0), abs(offset)] = weight

    def rows(block: tuple[int, int]) -> tuple[np.ndarray, ...]:
        return _rows(text.tokens, text.places, starts, *block, by_side)

    blocks = [*pool.map(rows, even_blocks(starts))]
    sizes, others, found, sums = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Cooccurrences(text.counts, offsets, others, found, sums)


def even_blocks(starts: np.ndarray) -> list[tuple[int, int]]:
    """Returns the first and last row, not included, of blocks of rows with about as many elements.

    starts: where each row begins, and the last ends.
    """
    cuts = np.searchsorted(starts, np.linspace(0, starts[-1], _BLOCKS + 1)[1:-1])
    return [*itertools.pairwise(np.unique([0, *cuts, len(starts) - 1]).tolist())]


@compiled
def _text(tokens, sizes, taken):
    """Returns the first taken[d] tokens of each document d, int32, with -1 before and after those
    of each document that has any."""
    total = np.int64(1)
    for document in range(len(sizes)):
        if taken[document]:
            total += taken[document] + 1
    text = np.full(total, -1, np.int32)
    at, start = np.int64(1), np.int64(0)
    for document in range(len(sizes)):
        end = start + sizes[document]
        if taken[document]:
            for k in range(start, start + taken[document]):
                text[at] = tokens[k]
                at += 1
            at += 1
        start = end
    return text


@compiled
def _by_entry(text, vocab_size):
    """Counting sort; returns the count of each entry, and the places of all by entry, int32."""
    counts = np.zeros(vocab_size, np.int64)
    for token in text:
        if token >= 0:
            counts[token] += 1
    free = np.cumsum(counts) - counts
    places = np.empty(counts.sum(), np.int32)
    for place in range(len(text)):
        token = text[place]
        if token >= 0:
            places[free[token]] = place
            free[token] += 1
    return counts, places


@compiled
def _rows(text, places, starts, first, last, by_side):
    """Returns of the rows first ... last - 1 their sizes, columns, values and sums."""
    vocab_size = len(starts) - 1
    counted = np.count_nonzero(by_side)
    room = np.int64(0)
    for a in range(first, last):
        room += min(vocab_size, counted * (starts[a + 1] - starts[a]))
    others, weights = np.empty(room, np.int32), np.empty(room, np.float32)
    sizes, sums = np.zeros(last - first, np.int64), np.zeros(last - first, np.float64)
    row, used = np.zeros(vocab_size, np.float64), np.int64(0)
    for a in range(first, last):
        begin = used
        for k in range(starts[a], starts[a + 1]):
            for side in range(2):
                at = np.int64(places[k])
                for offset in range(1, by_side.shape[1]):
                    at += 2 * side - 1
                    b = text[at]
                    if b < 0:
                        break
                    weight = by_side[side, offset]
                    if weight == 0:
                        continue
                    if row[b] == 0:
                        others[used] = b
                        used += 1
                    row[b] += weight
        others[begin:used].sort()
        for k in range(begin, used):
            b = others[k]
            weights[k] = row[b]
            sums[a - first] += row[b]
            row[b] = 0
        sizes[a - first] = used - begin
    return sizes, others[:used].copy(), weights[:used].copy(), sums
