"""Cut documents into examples: one compiled function per pairing mode, from lengths alone.

`nsp` is next sentence prediction as released with BERT (google-research/bert at eedf571,
`create_pretraining_data.py:223-339` and `:418-433`), draw for draw. An example is two ranges of the
token address space, A and B: truncating a pair at its front or back only moves a range's ends.

Three traits of the original that surprise people, kept on purpose:
- the target length is drawn once per document, so all examples of a "short" document share it;
- a chunk of one sentence has no second half, so its B is always random: P(random) exceeds 1/2;
- if all ten tries to find another document return the document itself, B is taken from it and the
  label stays "random" (1). Label 0 means that B follows A.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from data_pipeline.draws import below, chance, compiled, draw, fold, threshold

TRIES: Final = 10  # create_pretraining_data.py:278
HALF: Final = np.uint64(2**62)  # threshold(0.5)
BLOCK: Final = 1 << 20  # sentences handled at once: 56 MB of scratch memory

# Columns of the table that `_nsp` fills, one line per example.
_DOCUMENT, _LABEL, _A_START, _B_START, _A_LENGTH, _B_LENGTH, _COLUMNS = range(7)


@dataclass(frozen=True)
class Examples:
    """What every pairing mode returns: examples in document order, each one or more pieces.

    piece_start: int64 [P], token address. piece_length: int32 [P], tokens. piece_segment: int8 [P].
    pieces: int32 [E], pieces of each example. label: int8 [E]. document: int64 [E].
    """

    piece_start: np.ndarray
    piece_length: np.ndarray
    piece_segment: np.ndarray
    pieces: np.ndarray
    label: np.ndarray
    document: np.ndarray


@dataclass(frozen=True)
class Pools:
    """The documents that may lend each other a random second half, as lists of one array.

    pool_of_document: int32 [D]. offsets: int64 [number of pools + 1] into documents: int64 [D],
    ascending within a pool.
    """

    pool_of_document: np.ndarray
    offsets: np.ndarray
    documents: np.ndarray

    @classmethod
    def group(cls, labels: np.ndarray) -> "Pools":
        """Pools of the documents that carry the same label, in the order of their labels."""
        _, pool_of_document = np.unique(labels, return_inverse=True)
        sizes = np.bincount(pool_of_document)
        return cls(
            pool_of_document=pool_of_document.astype(np.int32),
            offsets=offsets_of(sizes),
            documents=np.argsort(pool_of_document, kind="stable").astype(np.int64),
        )

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Where each of consecutive ranges starts, and the end of the last: int64 [n + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


@compiled
def _random_second(key, n, document, pool, document_sentences, sentence_tokens, wanted):
    """`wanted` tokens or more of another document: (first, end, number of the next draw)."""
    other = document
    for _ in range(TRIES):
        other = pool[below(draw(key, n), len(pool))]
        n += 1
        if other != document:
            break
    begin, end = document_sentences[other], document_sentences[other + 1]
    first = begin + below(draw(key, n), end - begin)
    n += 1
    last = first + 1  # always at least one sentence
    while last < end and sentence_tokens[last] - sentence_tokens[first] < wanted:
        last += 1
    return sentence_tokens[first], sentence_tokens[last], n


@compiled
def _truncate(key, n, a_start, a_end, b_start, b_end, most):
    """Drop tokens of the longer side (B on ties), each from the front or the back, until ≤ most."""
    while (a_end - a_start) + (b_end - b_start) > most:
        front = chance(draw(key, n), HALF)
        n += 1
        if a_end - a_start > b_end - b_start:
            if front:
                a_start += 1
            else:
                a_end -= 1
        elif front:
            b_start += 1
        else:
            b_end -= 1
    return a_start, a_end, b_start, b_end, n


@compiled
def _nsp_document(key, document, pool, document_sentences, sentence_tokens, most, limit, out, at):
    """Write the pairs of one document into lines `at`, `at` + 1, … of `out`; the next free line."""
    end = document_sentences[document + 1]
    target = np.int64(most)
    n = 1
    if chance(draw(key, 0), limit):
        target = 2 + below(draw(key, 1), most - 1)
        n = 2
    chunk = document_sentences[document]  # first sentence of the current chunk
    last = chunk  # its last sentence so far
    while last < end:
        if last < end - 1 and sentence_tokens[last + 1] - sentence_tokens[chunk] < target:
            last += 1
            continue
        sentences = last + 1 - chunk
        a_sentences = 1
        if sentences >= 2:
            a_sentences = 1 + below(draw(key, n), sentences - 1)
            n += 1
        a_start, a_end = sentence_tokens[chunk], sentence_tokens[chunk + a_sentences]
        is_random = sentences == 1
        if not is_random:
            is_random = chance(draw(key, n), HALF)
            n += 1
        if is_random:
            wanted = target - (a_end - a_start)
            b_start, b_end, n = _random_second(
                key, n, document, pool, document_sentences, sentence_tokens, wanted
            )
            last -= sentences - a_sentences  # the unused sentences go back
        else:
            b_start, b_end = a_end, sentence_tokens[last + 1]
        a_start, a_end, b_start, b_end, n = _truncate(key, n, a_start, a_end, b_start, b_end, most)
        out[at, _DOCUMENT], out[at, _LABEL] = document, is_random
        out[at, _A_START], out[at, _A_LENGTH] = a_start, a_end - a_start
        out[at, _B_START], out[at, _B_LENGTH] = b_start, b_end - b_start
        at += 1
        last += 1
        chunk = last
    return at


@compiled
def _nsp(
    key, first, stop, pool_of_document, pool_offsets, pool_documents,
    document_sentences, sentence_tokens, most, limit, out,
):  # fmt: skip
    at = 0
    for document in range(first, stop):
        p = pool_of_document[document]
        at = _nsp_document(
            fold(key, document), document, pool_documents[pool_offsets[p] : pool_offsets[p + 1]],
            document_sentences, sentence_tokens, most, limit, out, at,
        )  # fmt: skip
    return at


def nsp(
    document_sentences: np.ndarray,
    sentence_tokens: np.ndarray,
    pools: Pools,
    *,
    seq_length: int,
    short_seq_prob: float,
    key: np.uint64,
) -> Iterator[Examples]:
    """All next-sentence examples, in document order, a block of documents at a time.

    document_sentences: int64 [D + 1], first sentence of each document and the end of the last.
    sentence_tokens: int64 [S + 1], the same for the tokens of each sentence. Every document has a
    sentence and every sentence a token. Draws of document d come from `fold(key, d)`, so no
    document depends on another's draws.
    """
    most = seq_length - 3  # [CLS] and two [SEP]; create_pretraining_data.py:230
    limit = threshold(short_seq_prob)
    documents = len(document_sentences) - 1
    first = 0
    while first < documents:
        reach = np.searchsorted(document_sentences, document_sentences[first] + BLOCK, "right") - 1
        stop = max(first + 1, int(reach))
        # An example uses up at least one sentence, its A.
        lines = int(document_sentences[stop] - document_sentences[first])
        table = np.empty((lines, _COLUMNS), np.int64)
        used = _nsp(
            key, first, stop, pools.pool_of_document, pools.offsets, pools.documents,
            document_sentences, sentence_tokens, most, limit, table,
        )  # fmt: skip
        yield _examples(table[:used])
        first = stop


def _examples(table: np.ndarray) -> Examples:
    count = len(table)
    return Examples(
        piece_start=table[:, _A_START : _B_START + 1].reshape(-1),
        piece_length=table[:, _A_LENGTH : _B_LENGTH + 1].astype(np.int32).reshape(-1),
        piece_segment=np.tile(np.array([0, 1], np.int8), count),
        pieces=np.full(count, 2, np.int32),
        label=table[:, _LABEL].astype(np.int8),
        document=table[:, _DOCUMENT].copy(),
    )
