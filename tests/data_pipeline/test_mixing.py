"""Source weights and language smoothing: the number of visits to each document in an epoch."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_plans import make_plan
from test_pairing import addressed, share, split_of
from test_plan import equal

from bert_jax.data_pipeline.plan import mixing
from bert_jax.data_pipeline.plan.plan import PlanSpec
from bert_jax.data_pipeline.plan.plan_settings import parse_weights
from bert_jax.errors import UserError

SOURCES = ("books", "wiki")
MODES = ("nsp", "sop", "full_sentences", "doc_sentences", "single")


def mixed(documents=400, seed=0):
    """Documents of two sources (0 and 1 alternating), 3 sentences each."""
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(5, 30, 3).tolist() for _ in range(documents)]
    return split_of(lengths, sources=[i % 2 for i in range(documents)]), lengths


def visits_of(plan, lengths):
    """Returns the visits of a plan to each document (without pairs): tokens read / its tokens."""
    sizes = np.array([sum(document) for document in lengths])
    document_of = np.repeat(np.arange(len(lengths)), sizes)
    read = np.zeros(len(lengths), np.int64)
    for start, length in zip(plan.piece_start.tolist(), plan.piece_length.tolist(), strict=True):
        read[document_of[start]] += length
    assert (read % sizes == 0).all()
    return read // sizes


@pytest.mark.parametrize("mode", ["full_sentences", "doc_sentences", "single"])
def test_documents_are_visited_as_often_as_their_source_weighs(mode):
    split, lengths = mixed(8000)
    weights = "books=2.25,wiki=0.5"
    spec = PlanSpec(64, pairing=mode, source_weights=weights)
    visits = visits_of(make_plan(split, spec, 0, sources=SOURCES), lengths)
    assert set(visits[::2].tolist()) == {2, 3}
    share((visits[::2] == 3).sum(), 4000, 0.25)
    assert set(visits[1::2].tolist()) == {0, 1}
    share(visits[1::2].sum(), 4000, 0.5)


def test_other_epochs_leave_out_other_documents():
    split, lengths = mixed(4000)
    spec = PlanSpec(64, pairing="single", source_weights="wiki=0.5")
    first, second = (
        visits_of(make_plan(split, spec, epoch, sources=SOURCES), lengths)[1::2] for epoch in (0, 1)
    )
    share((first & second).sum(), 2000, 0.25)


@pytest.mark.parametrize("mode", MODES)
def test_weights_of_one_change_nothing(mode):
    split, _ = mixed()
    spec = PlanSpec(64, pairing=mode)
    ones = dataclasses.replace(spec, source_weights="books=1,wiki=1")
    plan = make_plan(split, spec, 0)
    assert equal(plan, make_plan(split, ones, 0, sources=SOURCES))
    # A first visit has the same draws as without weights; later visits have new draws.
    twice = dataclasses.replace(spec, source_weights="books=2,wiki=2")
    doubled = make_plan(split, twice, 0, sources=SOURCES)
    if mode == "full_sentences":
        return  # blocks continue into the second visit
    assert np.array_equal(doubled.piece_start[: len(plan.piece_start)], plan.piece_start)
    if mode in ("nsp", "sop"):
        again = doubled.piece_start[len(plan.piece_start) :]
        assert not np.array_equal(again[: len(plan.piece_start)], plan.piece_start)


def test_a_stream_reads_all_before_it_reads_some_again():
    split = split_of([[10], [10], [10]], sources=[0, 1, 0])
    spec = PlanSpec(32, pairing="full_sentences", source_weights="books=2")
    plan = make_plan(split, dataclasses.replace(spec, short_seq_prob=0.0), 0, sources=SOURCES)
    assert plan.piece_start.tolist() == [0, 10, 20, 0, 20]


@pytest.mark.parametrize("mode", ["nsp", "sop"])
def test_a_source_of_weight_zero_is_never_read_not_even_as_a_random_second(mode):
    split, lengths = mixed()
    spec = PlanSpec(64, pairing=mode, negative_pool="corpus", source_weights="books=0,wiki=1")
    plan = make_plan(split, spec, 0, sources=SOURCES)
    texts = addressed(lengths)
    books = {token for text in texts[::2] for sentence in text for token in sentence}
    assert not books & set(plan.piece_start.tolist())
    assert set(plan.example_source.tolist()) == {1}


def test_languages_are_smoothed_after_the_weights():
    # Tokens 800, 100 and 100 of languages 0, 1 and 2; with its weight language 2 has 200 of 1,100.
    split = split_of([[100]] * 10, sources=[0] * 9 + [1], languages=[0, 0, 0, 0, 0, 0, 0, 0, 1, 2])
    expected = mixing.expected_visits(split, np.full(10, 100), {"wiki": 2.0}, 0.7, SOURCES)
    shares = np.array([800, 100, 200]) / 1100
    powers = shares**0.7
    factors = powers / powers.sum() / shares
    weights = [factors[0]] * 8 + [factors[1], 2 * factors[2]]
    assert expected == pytest.approx(weights, rel=1e-12)
    assert expected.sum() * 100 == pytest.approx(1100)  # the same as without smoothing


def test_smoothing_by_zero_makes_languages_equal_and_by_one_leaves_them():
    tokens = np.array([700.0, 0.0, 200.0, 100.0])
    assert mixing.smoothing(tokens, 0.0) * tokens == pytest.approx(
        [1000 / 3, 0, 1000 / 3, 1000 / 3]
    )
    assert mixing.smoothing(tokens, 1.0) == pytest.approx([1, 1, 1, 1])


def test_smoothed_languages_in_a_plan():
    documents = 6000
    languages = [0 if i % 10 else 1 for i in range(documents)]
    lengths = [[10, 20]] * documents
    split = split_of(lengths, languages=languages)
    spec = PlanSpec(64, pairing="single", language_smoothing=0.7)
    visits = visits_of(make_plan(split, spec, 0), lengths)
    powers = np.array([0.9, 0.1]) ** 0.7
    factors = powers / powers.sum() / [0.9, 0.1]
    for language, factor in enumerate(factors):
        own = visits[np.array(languages) == language]
        share((own > int(factor)).sum(), len(own), factor - int(factor))


@given(st.lists(st.floats(0, 4), min_size=1, max_size=50), st.integers(0, 2**40))
def test_visits_round_to_a_neighbour(expected, key):
    visits = mixing.draw_visits(np.array(expected), np.uint64(key))
    assert (np.abs(visits - np.array(expected)) < 1).all()


def test_an_unknown_source_is_named_with_the_nearest():
    split, _ = mixed()
    for weight, hint in (("book", "did you mean books?"), ("zzz", "valid: books, wiki")):
        spec = PlanSpec(64, source_weights=f"{weight}={2 if weight == 'zzz' else 1}")
        with pytest.raises(UserError, match=f'no source is called "{weight}"; {hint}'):
            make_plan(split, spec, 0, sources=SOURCES)


def test_nothing_left_is_said():
    split, _ = mixed()
    with pytest.raises(UserError, match='every source of the "train" split has'):
        make_plan(split, PlanSpec(64, source_weights="books=0,wiki=0"), 0, sources=SOURCES)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"source_weights": "books=-1"}, "books=-1"),
        ({"source_weights": "books=nan"}, "books=nan"),
        ({"source_weights": "books=1,books=2"}, "more than one weight"),
        ({"language_smoothing": -0.5}, "language_smoothing=-0.5"),
        ({"language_smoothing": float("inf")}, "language_smoothing=inf"),
    ],
)
def test_weights_that_cannot_be_meant_are_refused(wrong, message):
    with pytest.raises(UserError, match=message):
        PlanSpec(64, **wrong)


def test_weights_are_read_from_text():
    assert parse_weights("") == {}
    assert parse_weights(" wiki=0.5, books = 2,") == {"wiki": 0.5, "books": 2.0}
    for wrong in ("books", "=2", "books=two", "books 2"):
        with pytest.raises(UserError, match="is not of the form source=number"):
            parse_weights(wrong)
