"""Encodes every word once: its ids are kept in a table.

A word is a part of a sentence whose ids do not depend on the other parts, as `words` says for the
kinds of tokenizers. Text repeats its words: after a few megabytes a table knows nine of ten.
"""

import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, islice
from typing import Final

import numpy as np

from bert_jax.data_pipeline.tokenizer.tokenizer import Encoded, Tokenizer
from bert_jax.data_pipeline.tokenizer.words import Split

Encode = Callable[[Sequence[str]], Encoded]

MOST_BYTES: Final = 256 << 20  # of the tables of one process
_TOGETHER = 1 << 20  # characters split into words together
# Bytes of an entry besides its text and its ids: its row (an int), at most 44 in the dictionary,
# an offset, and the spare room of the arrays.
_ENTRY_BYTES = 96
_ID_BYTES = 5


def encode_words_once(tokenizer: Tokenizer, most_bytes: int = MOST_BYTES) -> Encode:
    """Returns a function with the result of `Tokenizer.encode`, faster the more text it has seen;
    `Tokenizer.encode` itself if the words of this tokenizer depend on one another.

    most_bytes: of memory; words that exceed it are encoded whenever they occur.
    """
    encode: Encode = tokenizer.encode
    for split in reversed(tokenizer.word_splits):
        encode = WordTable(split, encode, most_bytes // len(tokenizer.word_splits)).encode
    return encode


class WordTable:
    """The ids of words, in the order in which they were first met."""

    def __init__(self, split: Split, encode: Encode, most_bytes: int) -> None:
        """
        Args:
            split: returns the words of a text.
            encode: encodes words that the table lacks.
            most_bytes: of memory; the table takes no more words then.
        """
        self._split, self._encode, self._free = split, encode, most_bytes
        self._rows: defaultdict[str, int] = defaultdict(count().__next__)
        self._offsets, self._ids = array("q", [0]), array("I")

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Returns the ids of all texts, and their number for each."""
        parts = [self._encode_together(some) for some in _together(texts)]
        ids = np.concatenate([np.empty(0, np.uint32), *(part.ids for part in parts)])
        return Encoded(ids, np.concatenate([np.empty(0, np.int64), *(p.lengths for p in parts)]))

    def _encode_together(self, texts: Sequence[str]) -> Encoded:
        split = list(map(self._split, texts))
        words = list(chain.from_iterable(split))
        known = len(self._rows)
        # A word that the table lacks gets the next row.
        rows = np.fromiter(map(self._rows.__getitem__, words), np.int64, len(words))
        excess = self._add(list(islice(reversed(self._rows), len(self._rows) - known))[::-1])
        word_ends, ids = self._gather(rows)
        self._remove(excess)
        text_ends = np.cumsum(np.fromiter(map(len, split), np.int64, len(split)))
        return Encoded(ids, np.diff(word_ends[text_ends], prepend=0))

    def _gather(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns where the ids of the first 0, 1, … of these words end, int64, and all ids."""
        offsets, ids = np.frombuffer(self._offsets, np.int64), np.frombuffer(self._ids, np.uint32)
        lengths = offsets[rows + 1] - offsets[rows]
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1] if len(ends) else 0)
        places += np.repeat(offsets[rows] - ends + lengths, lengths)
        return np.concatenate([[0], ends]), ids[places]

    def _add(self, words: list[str]) -> int:
        """Adds the ids of the last words of the table; returns how many of them exceed its size."""
        if not words:
            return 0
        ids, lengths = self._encode(words)
        self._offsets.frombytes((self._offsets[-1] + np.cumsum(lengths)).tobytes())
        self._ids.frombytes(ids.tobytes())
        sizes = np.fromiter(map(sys.getsizeof, words), np.int64, len(words))
        total = np.cumsum(sizes + _ENTRY_BYTES + _ID_BYTES * lengths)
        kept = int(np.searchsorted(total, self._free, side="right"))
        self._free -= int(total[kept - 1]) if kept else 0
        return len(words) - kept

    def _remove(self, number: int) -> None:
        """Removes the last words of the table."""
        if number:
            for _ in range(number):
                self._rows.popitem()
            self._rows.default_factory = count(len(self._rows)).__next__
            del self._offsets[len(self._rows) + 1 :]
            del self._ids[self._offsets[-1] :]


def _together(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yields consecutive texts, until they have `_TOGETHER` characters, up to the last."""
    first = characters = 0
    for last, text in enumerate(texts, 1):
        characters += len(text)
        if characters >= _TOGETHER or last == len(texts):
            yield texts[first:last]
            first, characters = last, 0
