"""Pairs of segments: next sentence prediction and sentence order prediction.

`nsp` is as released with BERT (google-research/bert at eedf571,
`create_pretraining_data.py:223-339` and `:418-433`), `sop` as released with ALBERT
(google-research/albert at b772393, the function of the same name), both draw for draw. An example
is two ranges of the token address space, A and B: truncating a pair at its front or back only moves
the ends of a range.

Three surprising properties of the originals, reproduced on purpose:
- the target length is drawn once per document, so all examples of a "short" document share it;
- a chunk of one sentence has no second segment, so its B is always random: P(random) exceeds 1/2 in
  `nsp`, and `sop` has random pairs among its swapped ones, with the same label;
- if all ten tries to find another document return the document itself, B is taken from it and the
  label stays "random" (1). Label 0 means that B follows A.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from bert_jax.data_pipeline.pairing.lengths import (
    Examples,
    Pools,
    Texts,
    address,
    draw_target,
    visit_key,
)
from bert_jax.data_pipeline.random.counter_rng import below, chance, draw, threshold
from bert_jax.data_pipeline.random.numba_jit import compiled

TRIES: Final = 10  # create_pretraining_data.py:278
SPECIALS: Final = 3  # [CLS] and two [SEP]; create_pretraining_data.py:230
HALF: Final = np.uint64(2**62)  # threshold(0.5)

# Columns of the table that `_pairs` fills, one row per example.
_DOCUMENT, _LABEL, _A_START, _B_START, _A_LENGTH, _B_LENGTH, _COLUMNS = range(7)


@compiled
def _random_second(key, n, document, pool, texts, wanted):
    """Draws at least `wanted` tokens of another document, if it has them; returns (start, end,
    index of the next draw)."""
    other = document
    for _ in range(TRIES):
        other = pool[below(draw(key, n), len(pool))]
        n += 1
        if other != document:
            break
    begin, end = texts.document_sentences[other], texts.document_sentences[other + 1]
    sentence = begin + below(draw(key, n), end - begin)
    n += 1
    start = address(texts, sentence)
    length = np.int64(texts.sentence_lengths[sentence])  # always at least one sentence
    sentence += 1
    while sentence < end and length < wanted:
        length += texts.sentence_lengths[sentence]
        sentence += 1
    return start, start + length, n


@compiled
def _truncate(key, n, a_start, a_end, b_start, b_end, most):
    """Drops tokens of the longer segment (B on ties), each from the front or the back at random,
    until the pair has at most `most`."""
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
def _pairs_of_document(key, document, pool, texts, most, limit, swap, out, at):
    """Writes the pairs of one document into rows `at`, `at` + 1, … of `out`; returns the next free
    row.

    swap: half of the chunks of two or more sentences have A and B swapped (`sop`); otherwise half
    of them have a random B, and the sentences of the actual B are used again (`nsp`).
    """
    end = texts.document_sentences[document + 1]
    target, n = draw_target(key, most, limit)
    chunk = texts.document_sentences[document]  # first sentence of the current chunk
    last = chunk  # its last sentence so far
    start, length = address(texts, chunk), np.int64(0)  # its tokens
    while last < end:
        length += texts.sentence_lengths[last]
        if last < end - 1 and length < target:
            last += 1
            continue
        sentences = last + 1 - chunk
        a_sentences = 1
        if sentences >= 2:
            a_sentences = 1 + below(draw(key, n), sentences - 1)
            n += 1
        a_start = a_end = start
        for k in range(chunk, chunk + a_sentences):
            a_end += texts.sentence_lengths[k]
        other_label = sentences == 1
        if not other_label:
            other_label = chance(draw(key, n), HALF)
            n += 1
        if other_label and (sentences == 1 or not swap):
            wanted = target - (a_end - a_start)
            b_start, b_end, n = _random_second(key, n, document, pool, texts, wanted)
            last -= sentences - a_sentences  # the unused sentences start the next chunk
            start = a_end
        else:
            b_start, b_end = a_end, start + length
            start = b_end
            if other_label:
                a_start, a_end, b_start, b_end = b_start, b_end, a_start, a_end
        a_start, a_end, b_start, b_end, n = _truncate(key, n, a_start, a_end, b_start, b_end, most)
        out[at, _DOCUMENT], out[at, _LABEL] = document, other_label
        out[at, _A_START], out[at, _A_LENGTH] = a_start, a_end - a_start
        out[at, _B_START], out[at, _B_LENGTH] = b_start, b_end - b_start
        at += 1
        last += 1
        chunk, length = last, np.int64(0)
    return at


@compiled
def _pairs(
    key, turn, first, stop, visits, pool_of_document, pool_offsets, pool_documents, texts, most,
    limit, swap, out,
):  # fmt: skip
    at = np.int64(0)
    for document in range(first, stop):
        if visits[document] <= turn:
            continue
        p = pool_of_document[document]
        at = _pairs_of_document(
            visit_key(key, document, turn), document,
            pool_documents[pool_offsets[p] : pool_offsets[p + 1]],
            texts, most, limit, swap, out, at,
        )  # fmt: skip
    return at


def make_pairs(
    texts: Texts,
    visits: np.ndarray,
    pools: Pools,
    *,
    seq_length: int,
    short_seq_prob: float,
    key: np.uint64,
    swap: bool,
) -> Iterator[Examples]:
    """Yields all pairs of an epoch, in document order, a range of documents at a time.

    Each visit draws from its own key (`visit_key`), so no document depends on another's draws.

    Args:
        visits: int32 [D], visits to each document: all documents are read once, then those with a
            second visit again, and so on.
        swap: `sop` rather than `nsp`.
    """
    most, limit = seq_length - SPECIALS, threshold(short_seq_prob)
    for turn in range(visits.max(initial=0)):
        for first, stop in texts.blocks():
            # Each example consumes at least one sentence, its A.
            lines = int(texts.document_sentences[stop] - texts.document_sentences[first])
            table = np.empty((lines, _COLUMNS), np.int64)
            used = _pairs(
                key, turn, first, stop, visits,
                pools.pool_of_document, pools.offsets, pools.documents,
                texts, most, limit, swap, table,
            )  # fmt: skip
            yield _examples(table[:used])


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
