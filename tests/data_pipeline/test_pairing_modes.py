"""Every pairing mode but `nsp` against plain ports of the originals, given the same draws."""

import dataclasses

import numpy as np
import original_blocks
import original_generator as original
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_plans import make_plan
from test_pairing import addressed, pairs_of, share, split_of

from bert_jax.data_pipeline.pairing.blocks import dropped
from bert_jax.data_pipeline.plan.plan import PlanSpec
from bert_jax.data_pipeline.random import counter_rng
from bert_jax.errors import UserError

BLOCK_MODES = ("full_sentences", "doc_sentences", "single")

document = st.lists(
    st.one_of(st.just(1), st.integers(1, 12), st.integers(1, 90)), min_size=1, max_size=30
)
many_documents = st.lists(document, min_size=2, max_size=8)
shapes = st.one_of(st.integers(5, 12), st.integers(5, 130))
short = st.sampled_from([0.0, 0.1, 0.5, 1.0])

EXTREMES = [
    pytest.param([[1], [1]], id="one token"),
    pytest.param([[7], [3], [200]], id="one sentence"),
    pytest.param([[1] * 3000, [1] * 5], id="thousands of one-token sentences"),
    pytest.param([[1]] * 2000, id="thousands of one-token documents"),
    pytest.param([[600, 511, 510, 126, 127], [126], [1]], id="beyond 512"),
    pytest.param([[100_000], [4, 5, 6] * 9], id="a sentence of 100,000 tokens"),
    pytest.param([[2, 100_000, 3], [4, 5, 6] * 9], id="such a sentence among others"),
]


def key_of(spec, epoch):
    return original.stream_key(spec.seed, spec.phase, epoch, counter_rng.PAIRING)


def original_swaps(documents, spec, epoch):
    texts, pairs = addressed(documents), []
    for index in range(len(texts)):
        rng = original.PairDraws(original.fold(key_of(spec, epoch), index))
        pairs += original.create_pairs(
            texts, index, spec.seq_length, spec.short_seq_prob, rng, swap=True
        )
    return [(list(a), list(b), other) for a, b, other in pairs]


def original_blocks_of(documents, spec, epoch):
    texts, key = addressed(documents), key_of(spec, epoch)

    def rng(number):
        return original.PairDraws(original.fold(key, number))

    if spec.pairing == "full_sentences":
        return original_blocks.full_sentences(
            texts, range(len(texts)), spec.seq_length, spec.short_seq_prob, rng
        )
    return [
        block
        for number, text in enumerate(texts)
        for block in original_blocks.document_blocks(
            number,
            text,
            spec.seq_length,
            spec.short_seq_prob,
            rng(number),
            spec.pairing == "single",
        )
    ]


def blocks_of(plan, documents):
    """The blocks of a plan in the port's format: (document, token) in reading order."""
    document_of = np.repeat(np.arange(len(documents)), [sum(d) for d in documents]).tolist()
    starts, lengths = plan.piece_start.tolist(), plan.piece_length.tolist()
    blocks = []
    for first, stop in zip(plan.example_pieces[:-1], plan.example_pieces[1:], strict=True):
        tokens = [starts[p] + k for p in range(first, stop) for k in range(lengths[p])]
        blocks.append([(document_of[token], token) for token in tokens])
    return blocks


@given(many_documents, shapes, short, st.integers(-3, 2**40), st.integers(0, 9))
def test_sentence_order_pairs_equal_the_originals(documents, seq_length, prob, seed, epoch):
    spec = PlanSpec(seq_length, pairing="sop", short_seq_prob=prob, seed=seed, phase=1)
    plan = make_plan(split_of(documents), spec, epoch)
    assert pairs_of(plan) == original_swaps(documents, spec, epoch)


@pytest.mark.parametrize("mode", BLOCK_MODES)
@given(many_documents, shapes, short, st.integers(-3, 2**40), st.integers(0, 9))
def test_blocks_equal_the_originals(mode, documents, seq_length, prob, seed, epoch):
    spec = PlanSpec(seq_length, pairing=mode, short_seq_prob=prob, seed=seed, phase=1)
    expected = original_blocks_of(documents, spec, epoch)
    if not expected:
        with pytest.raises(UserError, match="gives no example"):
            make_plan(split_of(documents), spec, epoch)
        return
    plan = make_plan(split_of(documents), spec, epoch)
    assert blocks_of(plan, documents) == expected
    assert (plan.lengths() == [2 + original_blocks.size(block) for block in expected]).all()
    assert (plan.lengths() <= seq_length).all()
    assert not plan.example_label.any()


def fairseqs_blocks(documents, spec):
    lines = original_blocks.lines_of(addressed(documents))
    mode = {"full_sentences": original_blocks.complete,
            "doc_sentences": original_blocks.complete_doc}[spec.pairing]  # fmt: skip
    return mode(lines, spec.seq_length - 1)  # one less for <s>


def rows_of(plan):
    """The examples of a plan as assembled: tokens and [SEP], without [CLS]."""
    rows = []
    for first, stop in zip(plan.example_pieces[:-1], plan.example_pieces[1:], strict=True):
        row = []
        for piece in range(first, stop):
            start, length = plan.piece_start[piece].item(), plan.piece_length[piece].item()
            row += range(start, start + length)
            if piece + 1 == stop or plan.piece_segment[piece] != plan.piece_segment[piece + 1]:
                row.append(original_blocks.SEP)
        rows.append(row)
    return rows


FAIRSEQ = ("full_sentences", "doc_sentences")


@pytest.mark.parametrize("mode", FAIRSEQ)
@given(many_documents, shapes)
def test_separators_of_sentences_are_fairseqs(mode, documents, seq_length):
    spec = PlanSpec(seq_length, pairing=mode, separators="sentences", short_seq_prob=0.0)
    plan = make_plan(split_of(documents), spec, 0)
    assert rows_of(plan) == fairseqs_blocks(documents, spec)
    assert plan.lengths().tolist() == [1 + len(row) for row in rows_of(plan)]
    assert (plan.lengths() <= seq_length).all()
    assert not (plan.piece_segment & 1).any()  # one token type


@pytest.mark.parametrize("mode", FAIRSEQ)
@pytest.mark.parametrize("documents", EXTREMES)
def test_separators_of_sentences_in_extreme_documents(mode, documents):
    for seq_length in (128, 512):
        spec = PlanSpec(seq_length, pairing=mode, separators="sentences", short_seq_prob=0.0)
        assert rows_of(make_plan(split_of(documents), spec, 0)) == fairseqs_blocks(documents, spec)


def test_two_separators_stand_between_documents_or_one_begins_a_block():
    """511 places for what follows <s>: the end of a document may be the first of a block."""
    spec = PlanSpec(12, pairing="full_sentences", separators="sentences", short_seq_prob=0.0)
    sep = original_blocks.SEP
    between = make_plan(split_of([[2, 2], [1], [3]]), spec, 0)
    assert rows_of(between) == [[0, 1, sep, 2, 3, sep, sep, 4, sep, sep], [5, 6, 7, sep]]
    behind = make_plan(split_of([[4, 5], [3]]), spec, 0)
    assert rows_of(behind) == [[*range(4), sep, *range(4, 9), sep], [sep, 9, 10, 11, sep]]
    alone = make_plan(split_of([[10], [10]]), spec, 0)  # as in fairseq: only the document's end
    assert rows_of(alone) == [[*range(10), sep], [sep], [*range(10, 20), sep]]
    assert alone.lengths().tolist() == [12, 2, 12]


@pytest.mark.parametrize("mode", FAIRSEQ)
@given(many_documents, shapes, short, st.integers(0, 9))
def test_short_targets_bound_blocks_with_separators_too(mode, documents, seq_length, prob, epoch):
    """A block exceeds its target only as a single line; and no token is lost or repeated."""
    spec = PlanSpec(seq_length, pairing=mode, separators="sentences", short_seq_prob=prob)
    plan = make_plan(split_of(documents), spec, epoch)
    rows = rows_of(plan)
    assert [t for row in rows for t in row if t != original_blocks.SEP] == [
        token for text in addressed(documents) for sentence in text for token in sentence
    ]
    assert max(map(len, rows)) < seq_length
    if prob == 0:
        assert rows == fairseqs_blocks(documents, spec)


def test_separators_of_sentences_need_blocks():
    for pairing in ("nsp", "sop", "single"):
        with pytest.raises(UserError, match=f'does not apply to config.data.pairing="{pairing}"'):
            PlanSpec(32, pairing=pairing, separators="sentences")
    with pytest.raises(UserError, match="separators='lines'; valid: documents, sentences"):
        PlanSpec(32, pairing="full_sentences", separators="lines")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sop", *BLOCK_MODES])
@pytest.mark.parametrize("documents", EXTREMES)
def test_extreme_documents(mode, documents):
    for seq_length, prob in ((128, 0.0), (512, 0.5)):
        spec = PlanSpec(seq_length, pairing=mode, short_seq_prob=prob)
        plan = make_plan(split_of(documents), spec, 0)
        if mode == "sop":
            assert pairs_of(plan) == original_swaps(documents, spec, 0)
        else:
            assert blocks_of(plan, documents) == original_blocks_of(documents, spec, 0)


@pytest.mark.parametrize("mode", BLOCK_MODES)
@given(many_documents, shapes, short)
def test_blocks_hold_every_token_once_but_what_is_dropped(mode, documents, seq_length, prob):
    spec = PlanSpec(seq_length, pairing=mode, short_seq_prob=prob)
    kept = [
        token
        for text in addressed(documents)
        for sentence in text
        for token in sentence
        if mode != "single" or len(sentence) <= seq_length - 2
    ]
    lost = dropped(split_of(documents).sentence_lengths, seq_length)[1] if mode == "single" else 0
    assert len(kept) + lost == sum(map(sum, documents))
    if kept:
        plan = make_plan(split_of(documents), spec, 0)
        assert [token for block in blocks_of(plan, documents) for _, token in block] == kept


def test_dropped_sentences_are_counted():
    assert dropped(np.array([1, 30, 31, 100_000, 5], np.uint32), 32) == (2, 100_031)


def test_pieces_of_two_documents_are_told_apart_and_of_one_type():
    plan = make_plan(split_of([[3], [4], [5, 2]]), PlanSpec(32, pairing="full_sentences"), 0)
    assert plan.piece_length.tolist() == [3, 4, 7]
    assert plan.piece_segment.tolist() == [0, 2, 0]
    assert plan.lengths().tolist() == [1 + 3 + 1 + 4 + 1 + 7 + 1]


def test_a_block_is_of_the_source_of_its_first_token():
    split = split_of([[3], [30], [5, 2]], sources=[1, 0, 2])
    plan = make_plan(split, PlanSpec(36, pairing="full_sentences", short_seq_prob=0.0), 0)
    assert plan.piece_length.tolist() == [3, 30, 7]
    assert plan.example_source.tolist() == [1, 2]


@pytest.mark.parametrize("mode", ["sop", *BLOCK_MODES])
def test_blocks_of_documents_change_nothing(mode, monkeypatch):
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 30, rng.integers(1, 20)).tolist() for _ in range(60)]
    documents[7] = [1] * 40
    split, specs = split_of(documents), [PlanSpec(48, pairing=mode, short_seq_prob=0.3)]
    if mode in FAIRSEQ:
        specs.append(dataclasses.replace(specs[0], separators="sentences"))
    whole = [make_plan(split, spec, 0) for spec in specs]
    monkeypatch.setattr("bert_jax.data_pipeline.pairing.lengths.BLOCK", 15)
    parts = [make_plan(split, spec, 0) for spec in specs]
    for name in ("piece_start", "piece_length", "piece_segment", "example_pieces"):
        for one, other in zip(parts, whole, strict=True):
            assert np.array_equal(getattr(one, name), getattr(other, name))


def test_half_of_the_chunks_with_two_sentences_are_swapped():
    documents = [[5] * 24] * 4000
    spec = PlanSpec(63, pairing="sop", short_seq_prob=0.0)  # chunks of 12 sentences
    starts = make_plan(split_of(documents), spec, 0).piece_start.reshape(-1, 2)
    share((starts[:, 0] > starts[:, 1]).sum(), len(starts), 0.5)


def test_short_targets_are_drawn_per_document():
    documents = [[1] * 400] * 6000
    plan = make_plan(
        split_of(documents), PlanSpec(18, pairing="single", short_seq_prob=0.4), 0
    )  # 16 tokens at most
    counts = np.bincount(plan.piece_length[plan.piece_start % 400 == 0], minlength=17)
    assert counts[:2].sum() == 0
    for target in range(2, 16):
        share(counts[target], 6000, 0.4 / 15)
    share(counts[16], 6000, 0.6 + 0.4 / 15)


def test_short_targets_are_drawn_per_block_of_a_stream():
    spec = PlanSpec(18, pairing="full_sentences", short_seq_prob=0.4)
    counts = np.bincount(
        make_plan(split_of([[1] * 300_000]), spec, 0).piece_length[:-1], minlength=17
    )
    for target in range(2, 16):
        share(counts[target], counts.sum(), 0.4 / 15)
    share(counts[16], counts.sum(), 0.6 + 0.4 / 15)


@pytest.mark.parametrize("mode", BLOCK_MODES)
def test_a_row_too_short_for_a_block_is_refused(mode):
    with pytest.raises(UserError, match="cannot hold a block"):
        PlanSpec(3, pairing=mode)
    plan = make_plan(split_of([[1], [1, 2]]), PlanSpec(4, pairing=mode), 0)
    assert plan.piece_length.tolist() == [1, 1, 2]


def test_nothing_but_long_sentences_is_said():
    with pytest.raises(UserError, match='"train" split gives no example with pairing "single"'):
        make_plan(split_of([[40], [50]]), PlanSpec(32, pairing="single"), 0)
