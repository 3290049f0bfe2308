"""Input and output types of every pairing mode: sentence and document lengths, and examples."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from bert_jax.data_pipeline.random.counter_rng import below, chance, draw, fold_key
from bert_jax.data_pipeline.random.numba_jit import compiled

BLOCK: Final = 1 << 18  # sentences processed at once: about 25 MB of scratch memory
_STRIDE: Final = 6  # the address of every 2**6th sentence is stored


@dataclass(frozen=True)
class Examples:
    """The output of every pairing mode: examples in reading order, each of one or more pieces.

    Attributes:
        piece_start: int64 [P], token address.
        piece_length: int32 [P], tokens, 0 for a [SEP] only.
        piece_segment: int8 [P]; bit 0 is the token type; a [SEP] is inserted where it changes.
        pieces: int32 [E], pieces of each example.
        label: int8 [E].
        document: int64 [E], document of the first piece.
    """

    piece_start: np.ndarray
    piece_length: np.ndarray
    piece_segment: np.ndarray
    pieces: np.ndarray
    label: np.ndarray
    document: np.ndarray


def read_only(array: np.ndarray) -> np.ndarray:
    """Returns a plain read-only view, also of a memory map, so that numba compiles for one type."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Returns the start of each of n consecutive ranges, and the end of the last: int64 [n + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


class Texts(NamedTuple):
    """The lengths of a split, for compiled code.

    Every document has at least one sentence, and every sentence at least one token.

    Attributes:
        document_sentences: int64 [D + 1], first sentence of each document and the end of the last.
        sentence_lengths: uint32 [S], tokens.
        marks: int64 [S // 64 + 1], token addresses of sentences 0, 64, 128, …; the addresses of all
            sentences would take twice the memory of their lengths.
    """

    document_sentences: np.ndarray
    sentence_lengths: np.ndarray
    marks: np.ndarray

    @classmethod
    def of(cls, document_lengths: np.ndarray, sentence_lengths: np.ndarray) -> "Texts":
        lengths = read_only(sentence_lengths)
        return cls(offsets_of(document_lengths), lengths, _marks(lengths))

    @property
    def documents(self) -> int:
        return len(self.document_sentences) - 1

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yields consecutive ranges of documents of at most `BLOCK` sentences, or one document."""
        first = 0
        while first < self.documents:
            most = self.document_sentences[first] + BLOCK
            reach = int(np.searchsorted(self.document_sentences, most, "right")) - 1
            stop = max(first + 1, reach)
            yield first, stop
            first = stop


@compiled
def _marks(sentence_lengths):
    marks = np.empty((len(sentence_lengths) >> _STRIDE) + 1, np.int64)
    at = np.int64(0)
    for sentence in range(len(sentence_lengths)):
        if sentence & ((1 << _STRIDE) - 1) == 0:
            marks[sentence >> _STRIDE] = at
        at += sentence_lengths[sentence]
    if len(sentence_lengths) & ((1 << _STRIDE) - 1) == 0:
        marks[-1] = at
    return marks


@compiled
def address(texts, sentence):
    """Returns the token address where a sentence starts; for sentence S, the end of the text."""
    mark = sentence >> _STRIDE
    at = texts.marks[mark]
    for earlier in range(mark << _STRIDE, sentence):
        at += texts.sentence_lengths[earlier]
    return at


@compiled
def document_tokens(texts):
    """Returns the tokens of every document: int64 [D]."""
    tokens = np.zeros(len(texts.document_sentences) - 1, np.int64)
    for document in range(len(tokens)):
        for k in range(texts.document_sentences[document], texts.document_sentences[document + 1]):
            tokens[document] += texts.sentence_lengths[k]
    return tokens


@compiled
def visit_key(key, document, turn):
    """Returns the key for a document's first (turn 0), second, … visit in the epoch."""
    document_key = fold_key(key, document)
    return document_key if turn == 0 else fold_key(document_key, turn)


@compiled
def draw_target(key, most, limit):
    """Returns (target length, draws used): `most` tokens, or with the probability of `limit` a
    uniform length from 2 to `most`.

    create_pretraining_data.py:239-241 of google-research/bert at eedf571.
    """
    if chance(draw(key, 0), limit):
        return 2 + below(draw(key, 1), most - 1), 2
    return np.int64(most), 1


@dataclass(frozen=True)
class Pools:
    """Pools of documents that provide each other's random second segments, stored in one array.

    Attributes:
        pool_of_document: int32 [D], -1 for a document in no pool.
        offsets: int64 [number of pools + 1], into `documents`.
        documents: int64, ascending within a pool.
    """

    pool_of_document: np.ndarray
    offsets: np.ndarray
    documents: np.ndarray

    @classmethod
    def group(cls, labels: np.ndarray, members: np.ndarray | None = None) -> "Pools":
        """Groups documents (all, or those of a mask) by label; pools are in label order."""
        chosen = np.arange(len(labels)) if members is None else np.flatnonzero(members)
        _, pool = np.unique(labels[chosen], return_inverse=True)
        pool_of_document = np.full(len(labels), -1, np.int32)
        pool_of_document[chosen] = pool
        return cls(
            pool_of_document=pool_of_document,
            offsets=offsets_of(np.bincount(pool)),
            documents=chosen[np.argsort(pool, kind="stable")].astype(np.int64),
        )

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)
