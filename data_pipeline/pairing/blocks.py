"""Blocks of full sentences, without pairs: RoBERTa's two modes and SpanBERT's.

A block takes the next sentences until one more would exceed `seq_length` with the special tokens.

- `full_sentences` (Liu et al. 2019, section 4.2; fairseq at 3d262bb, `token_block_utils_fast.pyx`,
  break mode "complete"): blocks continue into the next document, in the store's order. This
  sequence is the same in every epoch; the order of the rows is not.
- `doc_sentences` (break mode "complete_doc"): the same, but a block ends with its document.
- `single` (Joshi et al. 2020; facebookresearch/SpanBERT at 0670d8b,
  `no_nsp_span_bert_dataset.py:66-96`): the same as `doc_sentences`, but a sentence longer than a
  block is dropped and ends the block before it. `dropped` counts them.

`separators` selects where the first two modes have a [SEP] besides the one that ends the block:

- "documents", as in the paper: one more between two documents.
- "sentences", as in fairseq's data: `fairseq-preprocess` ends every line with one (`binarizer.py`,
  `append_eos`), and the empty line between two documents is a [SEP] of its own. So there is one
  after each sentence, and two between documents, where a block may end before or after the second.
  Here a line is a sentence; the paper does not define the lines of RoBERTa's own files (in
  WikiText-103, the example of fairseq's README, a line is a paragraph).

The first two modes split a sentence longer than a block into full blocks; the next sentences follow
its rest (the paper does not specify this; fairseq makes an overlong block, which its trainer
skips). Two bugs of the SpanBERT release are not reproduced: it loses the block before a document
that ends in a dropped sentence, and the last document of a file without a trailing blank line.

`short_seq_prob` is BERT's, and 0 in all three recipes: the probability that a document (in
`full_sentences`, a block) has a shorter target length, which a single sentence may still exceed.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from bert_jax.data_pipeline.pairing.lengths import (
    Examples,
    Texts,
    address,
    draw_target,
    visit_key,
)
from bert_jax.data_pipeline.random.counter_rng import fold_key, threshold
from bert_jax.data_pipeline.random.numba_jit import compiled

SPECIALS: Final = 2  # [CLS] and [SEP] around a block


@compiled
def _blocks(
    key, turn, first, stop, visits, texts, most, limit, cross, state,
    starts, lengths, pieces, documents, drop,
):  # fmt: skip
    """Writes the blocks of documents [first, stop); returns (pieces written, examples finished, new
    state).

    state: (pieces of the open block, stored at the front of `starts` and `lengths`; its first
    document; its tokens so far, including [SEP] between documents; its target length; its number).
    """
    at, document_of_block, used, target, number = state
    begin = done = 0  # first piece of the open block; finished examples
    for document in range(first, stop):
        if visits[document] <= turn:
            continue
        if not cross:
            target = draw_target(visit_key(key, document, turn), most, limit)[0]
        start = address(texts, texts.document_sentences[document])
        length = 0  # tokens of this document in the open block
        for k in range(texts.document_sentences[document], texts.document_sentences[document + 1]):
            size = texts.sentence_lengths[k]
            between = 1 if length == 0 and used > 0 else 0
            if used > 0 and used + between + size > target:
                if length > 0:
                    starts[at], lengths[at] = start, length
                    at += 1
                    start += length
                pieces[done], documents[done] = at - begin, document_of_block
                done += 1
                begin, used, length, between = at, 0, 0, 0
            if used == 0:
                document_of_block = document
                if cross:
                    target = draw_target(fold_key(key, number), most, limit)[0]
                    number += 1
            if size > most and drop:
                start += size
                continue
            used += between + size
            length += size
            while used > most:  # a single sentence longer than a block
                starts[at], lengths[at] = start, most
                at += 1
                pieces[done], documents[done] = at - begin, document
                done += 1
                start += most
                begin, used, length = at, used - most, length - most
                if cross:
                    target = draw_target(fold_key(key, number), most, limit)[0]
                    number += 1
        if length > 0:
            starts[at], lengths[at] = start, length
            at += 1
        if used > 0 and not cross:
            pieces[done], documents[done] = at - begin, document_of_block
            done += 1
            begin, used = at, 0
    return at, done, (at - begin, document_of_block, used, target, number)


@compiled
def _sentence_blocks(
    key, turn, first, stop, visits, texts, most, limit, cross, state,
    starts, lengths, pieces, documents,
):  # fmt: skip
    """Like `_blocks`, with [SEP] after every sentence: each sentence is a piece, and with `cross`
    the end of a document is a piece without tokens. Takes 13 bytes per sentence, about half a byte
    per token: as much as pairs of length 128.

    state: as in `_blocks`, but the tokens of the open block include every [SEP], also the last.
    """
    at, document_of_block, used, target, number = state
    begin = done = 0
    for document in range(first, stop):
        if visits[document] <= turn:
            continue
        if not cross:
            target = draw_target(visit_key(key, document, turn), most, limit)[0]
        sentence, end = texts.document_sentences[document], texts.document_sentences[document + 1]
        start = address(texts, sentence)
        ended = 1 if cross and number > 0 else 0  # the line that ends the previous document
        for k in range(sentence - ended, end):
            size = np.int64(0 if k < sentence else texts.sentence_lengths[k])
            while True:  # repeats for the rest of a sentence longer than a block
                if used > 0 and used + size > target:
                    pieces[done], documents[done] = at - begin, document_of_block
                    done += 1
                    begin, used = at, 0
                if used == 0:
                    document_of_block = document
                    if cross:
                        target = draw_target(fold_key(key, number), most, limit)[0]
                        number += 1
                taken = min(size, most)
                starts[at], lengths[at] = start, taken
                at += 1
                used += taken + 1
                start += taken
                size -= taken
                if size == 0:
                    break
        if used > 0 and not cross:
            pieces[done], documents[done] = at - begin, document_of_block
            done += 1
            begin, used = at, 0
    return at, done, (at - begin, document_of_block, used, target, number)


def make_blocks(
    texts: Texts,
    visits: np.ndarray,
    *,
    seq_length: int,
    short_seq_prob: float,
    key: np.uint64,
    cross: bool,
    drop: bool,
    sentences: bool,
) -> Iterator[Examples]:
    """Yields all blocks of an epoch, in reading order, a range of documents at a time.

    Random draws use a key per visit of a document, or with `cross` per block.

    Args:
        visits: int32 [D], visits to each document: all documents are read once, then those with a
            second visit again, and so on.
        cross: blocks continue into the next document.
        drop: drop a sentence longer than a block rather than split it.
        sentences: [SEP] after every sentence (not with `drop`).
    """
    most, limit = seq_length - SPECIALS, threshold(short_seq_prob)
    state = (0, 0, 0, most, 0)
    open_starts, open_lengths = np.empty(0, np.int64), np.empty(0, np.int32)
    for turn in range(visits.max(initial=0)):
        for first, stop in texts.blocks():
            begin, end = texts.document_sentences[first], texts.document_sentences[stop]
            # A piece is a sentence, the end of a document, or a full block of an overlong sentence.
            tokens = address(texts, end) - address(texts, begin)
            ends = stop - first if sentences else 0
            room = int(end - begin + ends + tokens // most) + len(open_starts) + 1
            starts, lengths = np.empty(room, np.int64), np.empty(room, np.int32)
            starts[: len(open_starts)], lengths[: len(open_starts)] = open_starts, open_lengths
            pieces, documents = np.empty(room, np.int32), np.empty(room, np.int64)
            values = (
                key, turn, first, stop, visits, texts, most, limit, cross, state,
                starts, lengths, pieces, documents,
            )  # fmt: skip
            at, done, state = _sentence_blocks(*values) if sentences else _blocks(*values, drop)
            closed = at - state[0]
            open_starts, open_lengths = starts[closed:at].copy(), lengths[closed:at].copy()
            yield _examples(starts[:closed], lengths[:closed], pieces[:done], documents[:done])
    if len(open_starts):
        count, document = np.array([len(open_starts)], np.int32), np.array([state[1]])
        yield _examples(open_starts, open_lengths, count, document)


def _examples(
    starts: np.ndarray, lengths: np.ndarray, pieces: np.ndarray, documents: np.ndarray
) -> Examples:
    place = np.arange(len(starts)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return Examples(
        piece_start=starts,
        piece_length=lengths,
        piece_segment=(2 * (place & 1)).astype(np.int8),  # 0, 2, 0, …: [SEP] where it changes
        pieces=pieces,
        label=np.zeros(len(pieces), np.int8),
        document=documents,
    )


def dropped(sentence_lengths: np.ndarray, seq_length: int) -> tuple[int, int]:
    """Returns the (sentences, tokens) that `single` drops: sentences longer than a block."""
    long = sentence_lengths[sentence_lengths > seq_length - SPECIALS]
    return len(long), int(long.sum(dtype=np.int64))
