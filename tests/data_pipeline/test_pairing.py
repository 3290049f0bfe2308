"""The draws, and next-sentence pairing against the plain port of the original generator.

Statistics use fixed seeds, so they cannot flake; bounds are 4.4 standard errors (two-sided 1e-5).
"""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import original_generator as original
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_plans import make_plan

from bert_jax.data_pipeline.plan.plan import PlanSpec
from bert_jax.data_pipeline.random import counter_rng
from bert_jax.data_pipeline.store.split import Split
from bert_jax.errors import UserError

SIGMAS = 4.4
words = st.integers(0, 2**64 - 1)


def split_of(documents, sources=None, languages=None):
    """A split with these sentence lengths, document by document; token ids are never read."""
    sentences = [length for document in documents for length in document]
    zeros = [0] * len(documents)
    return Split(
        name="train",
        tokens=np.zeros(sum(sentences), np.uint16),
        sentence_lengths=np.array(sentences, np.uint32),
        document_lengths=np.array([len(document) for document in documents], np.uint32),
        document_source=np.array(sources or zeros, np.uint16),
        document_language=np.array(languages or zeros, np.uint16),
        token_counts=np.zeros(0, np.int64),
        digest="made by hand",
    )


def addressed(documents):
    """The same documents as lists of sentences, where each token is its own address."""
    address = 0
    result = []
    for document in documents:
        result.append([])
        for length in document:
            result[-1].append(range(address, address + length))
            address += length
    return result


def pairs_of(plan):
    starts, ends = plan.piece_start, plan.piece_start + plan.piece_length
    pieces = [list(range(a, b)) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    labels = plan.example_label.astype(bool).tolist()
    return list(zip(pieces[::2], pieces[1::2], labels, strict=True))


def original_pairs(documents, pools, spec, epoch):
    """The original's examples from every document, given the documents of its pool."""
    texts = addressed(documents)
    key = original.stream_key(spec.seed, spec.phase, epoch, counter_rng.PAIRING)
    pairs = []
    for index, pool in enumerate(pools):
        members = [i for i, other in enumerate(pools) if other == pool]
        rng = original.PairDraws(original.fold(key, index))
        pairs += original.create_pairs(
            [texts[i] for i in members],
            members.index(index),
            spec.seq_length,
            spec.short_seq_prob,
            rng,
        )
    return [(list(a), list(b), is_random) for a, b, is_random in pairs]


def share(hits, of, probability):
    """Whether hits / of agrees with a probability."""
    error = math.sqrt(probability * (1 - probability) / of)
    assert abs(hits / of - probability) < SIGMAS * error, (hits / of, probability, error)


def test_draws_are_splitmix64():
    # The first outputs of the published reference implementation for seed 0.
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [int(counter_rng.draw(np.uint64(0), n)) for n in range(3)] == expected


@given(words, words)
def test_fold_and_stream_key_match_the_twin(key, word):
    assert int(counter_rng.fold_key(np.uint64(key), np.uint64(word))) == original.fold(key, word)
    assert int(counter_rng.stream_key(key, word, 3, 2)) == original.stream_key(key, word, 3, 2)


def test_negative_seeds_are_seeds():
    assert int(counter_rng.stream_key(-1, 0, 0, 1)) == original.stream_key(-1, 0, 0, 1)


@given(st.randoms(use_true_random=False), st.one_of(st.integers(1, 99), st.integers(1, 2**32)))
def test_below_is_the_high_word_of_the_product(random, n):
    for bits in [0, 2**64 - 1, *(random.getrandbits(64) for _ in range(20))]:
        assert int(counter_rng.below(np.uint64(bits), n)) == bits * n >> 64


@given(words, st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.1, 0.5, 0.8, 1.0])))
def test_chance_compares_exactly(bits, probability):
    drawn = Fraction(bits >> 1, 2**63)
    limit = counter_rng.threshold(probability)
    assert bool(counter_rng.chance(np.uint64(bits), limit)) == (drawn < Fraction(probability))


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_threshold_refuses_what_is_no_probability(probability):
    with pytest.raises(ValueError, match="between 0 and 1"):
        counter_rng.threshold(probability)


@given(words, st.one_of(st.integers(1, 3000), st.sampled_from([1, 2, 4, 5, 16, 17, 64, 65, 1025])))
def test_permutation_is_one(key, n):
    image = counter_rng.permute(np.uint64(key), np.arange(n), n)
    assert sorted(image.tolist()) == list(range(n))


def test_permutations_of_few_are_all_drawn_alike():
    counts = {}
    for key in range(12_000):
        image = tuple(
            counter_rng.permute(np.uint64(counter_rng.fold_key(np.uint64(9), key)), np.arange(4), 4)
        )
        counts[image] = counts.get(image, 0) + 1
    assert len(counts) == 24
    chi2 = sum((count - 500) ** 2 / 500 for count in counts.values())
    assert chi2 < 68  # 23 degrees of freedom: exceeded once in 400,000


@pytest.mark.parametrize("n", [3, 5, 7, 17])
def test_every_index_goes_everywhere_alike(n):
    counts = np.zeros((n, n), np.int64)
    for key in range(6000):
        image = counter_rng.permute(
            np.uint64(counter_rng.fold_key(np.uint64(4), key)), np.arange(n), n
        )
        counts[np.arange(n), image] += 1
    for hits in counts.ravel():
        share(hits, 6000, 1 / n)


def test_permutation_spreads_neighbours():
    n = 1_000_003
    image = counter_rng.permute(np.uint64(5), np.arange(4000), n)
    # Uniform over [0, n): mean n/2 with standard error n/sqrt(12·4000).
    assert abs(image.mean() - n / 2) < SIGMAS * n / math.sqrt(12 * 4000)
    assert (np.abs(np.diff(image)) == 1).sum() <= 2


document = st.lists(
    st.one_of(st.just(1), st.integers(1, 12), st.integers(1, 90)), min_size=1, max_size=40
)


@settings(max_examples=150, deadline=None)
@given(
    documents=st.lists(document, min_size=2, max_size=8),
    seq_length=st.one_of(st.integers(5, 12), st.integers(5, 130)),
    short_seq_prob=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(-3, 2**40),
    epoch=st.integers(0, 9),
)
def test_pairs_equal_the_originals(documents, seq_length, short_seq_prob, seed, epoch):
    spec = PlanSpec(seq_length, short_seq_prob=short_seq_prob, seed=seed, phase=1)
    plan = make_plan(split_of(documents), spec, epoch)
    assert pairs_of(plan) == original_pairs(documents, [0] * len(documents), spec, epoch)


@settings(max_examples=40, deadline=None)
@given(
    documents=st.lists(document, min_size=8, max_size=16),
    pool=st.sampled_from(["source", "corpus"]),
    seed=st.integers(0, 1000),
)
def test_pools_are_by_source_and_language(documents, pool, seed):
    sources = [i % 2 for i in range(len(documents))]
    languages = [i // 2 % 2 for i in range(len(documents))]
    spec = PlanSpec(32, negative_pool=pool, seed=seed)
    plan = make_plan(split_of(documents, sources, languages), spec, 0)
    pools = list(zip(sources, languages, strict=True))
    if pool == "corpus":
        pools = [0] * len(documents)
    assert pairs_of(plan) == original_pairs(documents, pools, spec, 0)
    texts = addressed(documents)
    source_of = {t: s for s, doc in zip(sources, texts, strict=True) for x in doc for t in x}
    expected = [source_of[a[0]] for a, _, _ in pairs_of(plan)]
    assert plan.example_source.tolist() == expected


def test_blocks_of_documents_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 30, rng.integers(1, 20)).tolist() for _ in range(60)]
    spec = PlanSpec(48)
    whole = pairs_of(make_plan(split_of(documents), spec, 0))
    monkeypatch.setattr(
        "bert_jax.data_pipeline.pairing.lengths.BLOCK", 15
    )  # below the largest document
    assert pairs_of(make_plan(split_of(documents), spec, 0)) == whole


@pytest.mark.parametrize(
    "documents",
    [
        pytest.param([[1], [1]], id="one token"),
        pytest.param([[7], [3], [200]], id="one sentence"),
        pytest.param([[1] * 3000, [1] * 5], id="one-token sentences"),
        pytest.param([[100_000], [4, 5, 6] * 9], id="a sentence of 100,000 tokens"),
        pytest.param([[2, 100_000, 3], [4, 5, 6] * 9], id="such a sentence among others"),
    ],
)
def test_extreme_documents(documents):
    for seed in range(1 if max(map(max, documents)) > 1000 else 5):
        spec = PlanSpec(128, seed=seed)
        made = pairs_of(make_plan(split_of(documents), spec, 0))
        assert made == original_pairs(documents, [0] * len(documents), spec, 0)


def test_ten_failed_tries_leave_the_label_random():
    # With two documents each try hits the same one with probability 1/2: all ten, 1 in 1024.
    documents = [[1] * 6000, [1] * 6000]
    spec = PlanSpec(5, short_seq_prob=0.0)
    plan = make_plan(split_of(documents), spec, 0)
    assert pairs_of(plan) == original_pairs(documents, [0, 0], spec, 0)
    starts = plan.piece_start.reshape(-1, 2)
    own = (starts[:, 0] < 6000) == (starts[:, 1] < 6000)
    random = plan.example_label == 1
    assert own[~random].all()
    share(own[random].sum(), random.sum(), 2**-10)
    assert own[random].sum() > 0


@pytest.fixture(scope="module")
def many():
    """40,000 documents of 6 to 60 sentences of 1 to 40 tokens, planned once."""
    rng = np.random.default_rng(1)
    documents = [rng.integers(1, 41, rng.integers(6, 61)).tolist() for _ in range(40_000)]
    split = split_of(documents)
    return split, make_plan(split, PlanSpec(128, seed=3), 0)


def test_half_of_the_pairs_with_a_choice_are_random(many):
    split, plan = many
    ends = np.cumsum(split.sentence_lengths, dtype=np.int64)
    starts = plan.piece_start.reshape(-1, 2)
    lengths = plan.piece_length.reshape(-1, 2)
    # A pair has no choice if its chunk is one sentence: the last one of a document, or one so long
    # that it fills a short target. Sentences of the full target do not exist here.
    last = np.isin(starts[:, 0] + lengths[:, 0], ends[np.cumsum(split.document_lengths) - 1])
    short = _short_documents(split, plan)
    document_ends = ends[np.cumsum(split.document_lengths) - 1]
    document = np.searchsorted(document_ends, starts[:, 0], side="right")
    free = ~last & ~short[document]
    share((plan.example_label[free] == 1).sum(), free.sum(), 0.5)
    assert plan.example_label[last].all()
    assert plan.example_label.mean() > 0.5  # plus the forced random pairs


def _short_documents(split, plan):
    key = original.stream_key(3, 0, 0, counter_rng.PAIRING)
    return np.array(
        [
            original.PairDraws(original.fold(key, i)).random() < 0.1
            for i in range(len(split.document_lengths))
        ]
    )


def test_short_targets_are_one_per_document_and_uniform():
    # One-token sentences: an IsNext pair is exactly as long as its document's target.
    documents = [[1] * 60] * 30_000
    plan = make_plan(split_of(documents), PlanSpec(19, short_seq_prob=0.4), 0)  # most = 16
    lengths = plan.piece_length.reshape(-1, 2).sum(1)
    starts = plan.piece_start.reshape(-1, 2)[:, 0]
    # The remainder of a document is not a full chunk; check pairs well before its end.
    full = (plan.example_label == 0) & (starts % 60 < 30)
    targets = {}
    for doc, length in zip((starts[full] // 60).tolist(), lengths[full].tolist(), strict=True):
        targets.setdefault(doc, set()).add(length)
    assert all(len(of_document) == 1 for of_document in targets.values())
    # A document's first pair is IsNext with probability 1/2 for any target.
    first = full & (starts % 60 == 0)
    counts = np.bincount(lengths[first], minlength=17)
    assert counts[:2].sum() == 0
    for target in range(2, 16):
        share(counts[target], counts.sum(), 0.4 / 15)
    share(counts[16], counts.sum(), 0.6 + 0.4 / 15)


def test_truncation_cuts_front_and_back_alike():
    # A is one sentence of 90, B of 90: 55 tokens too many for 125; A is cut only when longer.
    documents = [[90, 90]] * 4000
    plan = make_plan(split_of(documents), PlanSpec(128, short_seq_prob=0.0), 0)
    starts, lengths = plan.piece_start.reshape(-1, 2), plan.piece_length.reshape(-1, 2)
    pairs = (starts[:, 0] // 90) % 2 == 0
    # Ties cut B: 55 removals alternate B, A, B, … so that B loses 28 and A 27.
    assert (lengths[pairs] == [63, 62]).all()
    share((starts[pairs, 0] % 90).sum(), 27 * pairs.sum(), 0.5)
    share((starts[pairs, 1] % 90).sum(), 28 * pairs.sum(), 0.5)


@pytest.mark.parametrize("pairing", ["nsp", "sop"])
def test_a_source_with_one_document_is_refused(pairing):
    split, spec = split_of([[5], [5], [5]], sources=[0, 1, 0]), PlanSpec(32, pairing=pairing)
    with pytest.raises(UserError) as caught:
        make_plan(split, spec, 0, sources=("wikipedia", "books"), languages=("en",))
    message = str(caught.value)
    assert f'pairing "{pairing}"' in message
    assert 'source "books"' in message
    assert '"en"' in message
    assert '"train" split' in message
    assert "\n" not in message
    assert make_plan(split, dataclasses.replace(spec, negative_pool="corpus"), 0).rows == 3


def test_a_single_document_is_refused_by_both_pools():
    for pool in ("source", "corpus"):
        with pytest.raises(UserError, match="single document"):
            make_plan(split_of([[5, 6]]), PlanSpec(32, negative_pool=pool), 0)


def test_a_row_too_short_for_a_pair_is_refused():
    with pytest.raises(UserError, match="cannot hold a pair"):
        PlanSpec(4)
    plan = make_plan(split_of([[5, 6], [7]]), PlanSpec(5), 0)
    assert (plan.piece_length == 1).all()


@pytest.mark.parametrize(
    "wrong",
    [{"short_seq_prob": 1.5}, {"pairing": "spn"}, {"negative_pool": "shard"}],
)
def test_spec_refuses_unknown_values(wrong):
    ((key, value),) = wrong.items()
    with pytest.raises(UserError, match=rf"^config\.data\.{key}={value!r}"):
        PlanSpec(32, **wrong)
