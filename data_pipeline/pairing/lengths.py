"""What every pairing mode reads and returns: lengths of sentences and documents, and examples."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from bert_jax.data_pipeline.random.counter_rng import below, chance, draw, fold_key
from bert_jax.data_pipeline.random.numba_jit import compiled

BLOCK: Final = 1 << 18  # sentences handled at once: about 25 MB of scratch memory
_STRIDE: Final = 6  # every 2**6th sentence has its address noted


@dataclass(frozen=True)
class Examples:
    """What every pairing mode returns: examples in reading order, each one or more pieces.

    piece_start: int64 [P], token address. piece_length: int32 [P], tokens, 0 for a [SEP] alone.
    piece_segment: int8 [P]; bit 0 is the token type, and [SEP] goes where the value changes.
    pieces: int32 [E], pieces of each example. label: int8 [E]. document: int64 [E], where the first
    piece is from.
    """

    piece_start: np.ndarray
    piece_length: np.ndarray
    piece_segment: np.ndarray
    pieces: np.ndarray
    label: np.ndarray
    document: np.ndarray


def read_only(array: np.ndarray) -> np.ndarray:
    """A plain read-only view, whether memory-mapped or not: compiled code then meets one type."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Where each of consecutive ranges starts, and the end of the last: int64 [n + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


class Texts(NamedTuple):
    """The lengths of a split, as compiled code reads them.

    document_sentences: int64 [D + 1], first sentence of each document and the end of the last.
    sentence_lengths: uint32 [S], tokens. marks: int64 [S // 64 + 1], token addresses of sentences
    0, 64, 128, …: the addresses of all would be twice the size of their lengths.
    Every document has a sentence and every sentence a token.
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

    def blocks(self, size: int) -> Iterator[tuple[int, int]]:
        """Ranges of documents of at most `size` sentences, or one document, after one another."""
        first = 0
        while first < self.documents:
            most = self.document_sentences[first] + size
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
    """The token address at which a sentence starts; that of sentence S is the end."""
    mark = sentence >> _STRIDE
    at = texts.marks[mark]
    for earlier in range(mark << _STRIDE, sentence):
        at += texts.sentence_lengths[earlier]
    return at


@compiled
def document_tokens(texts):
    """Tokens of every document: int64 [D]."""
    tokens = np.zeros(len(texts.document_sentences) - 1, np.int64)
    for document in range(len(tokens)):
        for k in range(texts.document_sentences[document], texts.document_sentences[document + 1]):
            tokens[document] += texts.sentence_lengths[k]
    return tokens


@compiled
def visit_key(key, document, turn):
    """The key of a document's draws at its first (turn 0), second, … visit of the epoch."""
    own = fold_key(key, document)
    return own if turn == 0 else fold_key(own, turn)


@compiled
def draw_target(key, most, limit):
    """(target length, draws used): `most` tokens, or with a chance fewer, 2 to `most` alike.

    create_pretraining_data.py:239-241 of google-research/bert at eedf571.
    """
    if chance(draw(key, 0), limit):
        return 2 + below(draw(key, 1), most - 1), 2
    return np.int64(most), 1


@dataclass(frozen=True)
class Pools:
    """The documents that may lend each other a random second half, as lists of one array.

    pool_of_document: int32 [D], -1 where a document lends nothing and borrows nothing. offsets:
    int64 [number of pools + 1] into documents: int64, ascending within a pool.
    """

    pool_of_document: np.ndarray
    offsets: np.ndarray
    documents: np.ndarray

    @classmethod
    def group(cls, labels: np.ndarray, members: np.ndarray | None = None) -> "Pools":
        """Pools of the documents (all, or those of a mask) with the same label, by label."""
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
