"""Plans of real text: label balance, coverage and how full packed rows are.

Seeds are fixed, so nothing flakes; shares agree within 4.4 standard errors (see `share`).
"""

import numpy as np
import original_generator as original
import pytest
from made_plans import make_plan
from test_pairing import share

from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.pairing.blocks import dropped
from bert_jax.data_pipeline.plan.packing import packing_bound
from bert_jax.data_pipeline.plan.plan import PlanSpec
from bert_jax.data_pipeline.random import counter_rng
from bert_jax.data_pipeline.sources import parse_source
from bert_jax.data_pipeline.store_build.build import build_store
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

SLOTS = {128: 20, 512: 77}
BLOCK_MODES = ("full_sentences", "doc_sentences", "single")


@pytest.fixture(scope="module")
def split(real_data, real_wiki_files, real_books, tmp_path_factory):
    sources = [
        parse_source(f"wikiextractor:{real_wiki_files[0].parent}"),
        parse_source(f"books:{real_books[0].parents[1]}"),
    ]
    vocabulary = Tokenizer.load(real_data / "vocab" / "bert-base-uncased-vocab.txt")
    out = tmp_path_factory.mktemp("real") / "store"
    return build_store(sources, vocabulary, out, workers=1, progress=False).train


def places(split, plan):
    """Of each pair: (sentence of A's first token, document of A, document of B)."""
    sentence_ends = np.cumsum(split.sentence_lengths, dtype=np.int64)
    document_ends = sentence_ends[np.cumsum(split.document_lengths, dtype=np.int64) - 1]
    a, b = plan.piece_start.reshape(-1, 2).T
    find = np.searchsorted
    return (
        find(sentence_ends, a, "right"),
        find(document_ends, a, "right"),
        find(document_ends, b, "right"),
    )


def spec_of(pairing, seq_length, *, row=None, examples=1, seed=0):
    row = row or seq_length
    return PlanSpec(
        seq_length,
        pairing=pairing,
        short_seq_prob=0.0 if pairing in BLOCK_MODES else 0.1,
        seed=seed,
        row_tokens=row,
        row_predictions=-(-SLOTS[seq_length] * row // seq_length),
        examples_per_row=examples,
        predictions=tuple(MaskingSpec(SLOTS[seq_length]).predictions(seq_length).tolist()),
    )


@pytest.mark.slow
def test_half_of_the_pairs_with_a_choice_have_a_random_second(split):
    random = free = 0
    ends = np.cumsum(split.document_lengths, dtype=np.int64)
    for epoch in range(4):
        spec = PlanSpec(128, short_seq_prob=0.0)
        plan = make_plan(split, spec, epoch)
        sentence, document, _ = places(split, plan)
        # A chunk is one sentence at the end of its document, or where the sentence fills it.
        forced = (sentence == ends[document] - 1) | (split.sentence_lengths[sentence] >= 125)
        random += (plan.example_label[~forced] == 1).sum()
        free += (~forced).sum()
        assert plan.example_label[forced].all()
    assert free > 10_000
    share(random, free, 0.5)


@pytest.mark.parametrize("seq_length", [128, 512])
def test_half_of_the_chunks_with_two_sentences_are_swapped(split, seq_length):
    swapped = ordered = 0
    for epoch in range(4):
        plan = make_plan(split, PlanSpec(seq_length, pairing="sop"), epoch)
        _, a, b = places(split, plan)
        one_chunk = a == b  # a random second is from another document
        first_is_a = plan.piece_start[::2] < plan.piece_start[1::2]
        assert np.array_equal(plan.example_label[one_chunk] == 0, first_is_a[one_chunk])
        assert plan.example_label[~one_chunk].all()
        swapped += (plan.example_label[one_chunk] == 1).sum()
        ordered += (plan.example_label[one_chunk] == 0).sum()
    share(swapped, swapped + ordered, 0.5)


def pairs_of_documents(split, spec, epoch):
    """The pieces of every document's pairs."""
    plan = make_plan(split, spec, epoch)
    pieces = np.stack([plan.piece_start, plan.piece_length], 1).reshape(-1, 4)
    _, document, _ = places(split, plan)
    return np.split(pieces, np.searchsorted(document, np.arange(1, len(split.document_lengths))))


def test_a_tenth_of_the_documents_are_cut_short(split):
    documents, epochs, cut = len(split.document_lengths), 20, 0
    for epoch in range(epochs):
        key = original.stream_key(0, 0, epoch, counter_rng.PAIRING)
        rngs = [original.PairDraws(original.fold(key, d)) for d in range(documents)]
        is_short = np.array([rng.random() < 0.1 for rng in rngs])
        cut += is_short.sum()
        if epoch < 2:  # the plan cuts those documents, and no others
            plain = pairs_of_documents(split, PlanSpec(128, short_seq_prob=0.0), epoch)
            made = pairs_of_documents(split, PlanSpec(128), epoch)
            changed = np.array([not np.array_equal(a, b) for a, b in zip(plain, made, strict=True)])
            assert not changed[~is_short].any()
            targets = np.array([rng.randint(2, 125) for rng in rngs])
            long = np.array([len(pairs) >= 5 for pairs in plain])
            surely = is_short & long & (targets < 100)
            assert changed[surely].all()
            assert surely.sum() > 10
    share(cut, documents * epochs, 0.1)


@pytest.mark.parametrize("seq_length", [128, 512])
@pytest.mark.parametrize("mode", BLOCK_MODES)
def test_blocks_hold_every_token_once_but_what_is_dropped(split, mode, seq_length):
    plan = make_plan(split, spec_of(mode, seq_length), 0)
    lost = dropped(split.sentence_lengths, seq_length)[1] if mode == "single" else 0
    assert plan.piece_length.sum(dtype=np.int64) + lost == len(split.tokens)
    read = np.zeros(len(split.tokens) + 1, np.int64)
    np.add.at(read, plan.piece_start, 1)
    np.add.at(read, plan.piece_start + plan.piece_length, -1)
    kept = split.sentence_lengths <= (seq_length - 2 if mode == "single" else np.inf)
    assert np.array_equal(np.cumsum(read)[:-1], np.repeat(kept, split.sentence_lengths))


@pytest.mark.parametrize("mode", ["nsp", "sop"])
@pytest.mark.parametrize(("seq_length", "row", "examples"), [(128, 512, 32), (512, 512, 8)])
def test_packed_rows_of_pairs_are_99_percent_real(split, mode, seq_length, row, examples):
    for seed in range(3):
        spec = spec_of(mode, seq_length, row=row, examples=examples, seed=seed)
        assert make_plan(split, spec, 0).fill_rate(row) >= 0.99


@pytest.mark.parametrize("mode", ["nsp", "sop", *BLOCK_MODES])
@pytest.mark.parametrize("seq_length", [128, 512])
def test_packed_rows_reach_99_percent_of_what_is_possible(split, mode, seq_length):
    spec = spec_of(mode, seq_length, examples=8)
    plan = make_plan(split, spec, 0)
    counts = np.bincount(plan.lengths(), minlength=seq_length + 1)
    bound = packing_bound(counts, spec.slots, spec.limits)
    assert 0.99 * bound <= plan.fill_rate(seq_length) <= bound
