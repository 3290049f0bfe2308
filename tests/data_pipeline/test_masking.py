"""Token masking against a plain port of the original, and its rates against their formulas."""

import math

import numpy as np
import original_generator as original
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data_pipeline.assemble import BatchArrays
from bert_jax.data_pipeline.masking.scratch import empty_scratch, fill_slots
from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.random import counter_rng
from bert_jax.errors import UserError

CLS, SEP, MASK, VOCAB = 101, 102, 103, 30522
SIGMAS = 4.4


def masked(ids, spec, key, vocab_size=VOCAB):
    """Returns (masked ids, positions, labels) of a row with one example."""
    places = [k for k, token in enumerate(ids) if token not in (CLS, SEP)]
    rule, scratch = spec.rule(MASK, vocab_size, len(ids)), empty_scratch(len(ids))
    scratch.places[: len(places)] = places
    wanted = min(int(rule.budgets[len(ids)]), len(places))
    out = BatchArrays.empty(1, len(ids), wanted, 0, 0, 0)
    out.input_ids[0] = ids
    taken = spec.mode.select(np.uint64(key), rule, scratch, len(places), wanted)
    assert taken == wanted
    fill_slots(scratch, taken, out, 0, 0)
    key = np.uint64(counter_rng.fold_key(np.uint64(key), 1))
    spec.mode.replace(key, rule, scratch, len(places), taken, out, 0, 0)
    assert (out.masked_weights == 1).all()
    return tuple(a[0].tolist() for a in (out.input_ids, out.masked_positions, out.masked_labels))


def share(hits, of, probability, slack=0.0):
    """Whether hits / of agrees with a probability: two-sided 1e-5, the seeds being fixed."""
    error = math.sqrt(max(0.0, probability * (1 - probability)) / of)
    assert abs(hits / of - probability) <= SIGMAS * error + slack, (hits / of, probability, error)


@settings(max_examples=200, deadline=None)
@given(
    a=st.lists(st.integers(0, 40), min_size=1, max_size=300),
    b=st.lists(st.integers(0, 40), min_size=1, max_size=200),
    slots=st.sampled_from([1, 2, 20, 77]),
    key=st.integers(0, 2**64 - 1),
)
def test_masks_equal_the_originals(a, b, slots, key):
    ids, _ = original.add_special(a, b, CLS, SEP)
    expected = original.mask(ids, CLS, SEP, MASK, VOCAB, slots, original.MaskDraws(key))
    assert masked(ids, MaskingSpec(slots), key) == expected


@pytest.mark.parametrize(
    ("length", "expected"),
    [(5, 1), (9, 1), (10, 2), (30, 4), (50, 8), (70, 10), (127, 19), (128, 19), (512, 20)],
)
def test_number_of_predictions_rounds_halves_to_even(length, expected):
    assert MaskingSpec(20).predictions(512)[length] == expected


def test_every_example_has_a_prediction():
    assert (MaskingSpec(20, mask_rate=0.01).predictions(49) == 1).all()


def test_default_limits_are_the_originals():
    rule = MaskingSpec(20).rule(MASK, VOCAB, 128)
    assert rule.mask_limit == counter_rng.threshold(0.8)
    assert rule.keep_limit == counter_rng.threshold(0.5)
    assert rule.random_limit == counter_rng.threshold(0.9)


@pytest.mark.parametrize(
    ("mask_share", "random_share"), [(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.5, 0.5), (0.0, 0.0)]
)
def test_shares(mask_share, random_share):
    spec = MaskingSpec(77, mask_share=mask_share, random_share=random_share)
    ids = [CLS, *range(1000, 1509), SEP, SEP]
    to_mask = random = kept = 0
    for key in range(300):
        after, positions, labels = masked(ids, spec, original.fold(4, key))
        assert labels == [ids[position] for position in positions]
        for position in positions:
            to_mask += after[position] == MASK
            kept += after[position] == ids[position]
            random += after[position] not in (MASK, ids[position])
    total = to_mask + random + kept
    assert total == 300 * 77
    # A random id may be [MASK], or the token itself: once in VOCAB draws each, 0.8 times in all.
    share(to_mask, total, mask_share, slack=5 / total)
    share(random, total, random_share, slack=5 / total)
    share(kept, total, 1 - mask_share - random_share, slack=5 / total)


def test_every_position_is_chosen_alike():
    ids = [CLS, *range(1000, 1057), SEP, SEP]  # 60 tokens: 9 of 57 chosen
    counts = np.zeros(60, np.int64)
    for key in range(6000):
        _, positions, _ = masked(ids, MaskingSpec(20), original.fold(7, key))
        assert positions == sorted(set(positions))
        counts[positions] += 1
    assert counts[[0, 58, 59]].sum() == 0
    for hits in counts[1:58]:
        share(hits, 6000, 9 / 57)


def test_random_ids_cover_the_whole_vocabulary_alike():
    ids = [CLS, *[50] * 509, SEP, SEP]
    spec = MaskingSpec(77, mask_share=0.0, random_share=1.0)
    counts = np.zeros(20, np.int64)
    for key in range(300):
        after, positions, _ = masked(ids, spec, original.fold(8, key), vocab_size=20)
        counts += np.bincount([after[position] for position in positions], minlength=20)
    for hits in counts:  # specials and unused ids included
        share(hits, counts.sum(), 1 / 20)


def test_no_more_predictions_than_candidates():
    spec = MaskingSpec(20, mask_rate=1.0)
    _, positions, labels = masked([CLS, 7, SEP, 8, SEP], spec, 3)
    assert (positions, labels) == ([1, 3], [7, 8])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mask_rate": 1.2}, r"config\.data\.mask_rate=1\.2 should be from 0 to 1"),
        ({"mask_share": -0.1}, r"config\.data\.mask_share=-0\.1 should be from 0 to 1"),
        ({"mask_share": 0.8, "random_share": 0.3}, "exceeds 1"),
        ({"masking": "tokens"}, r"config\.data\.masking='tokens'; did you mean token\?"),
        ({"max_ngram": 0}, r"config\.data\.max_ngram=0 should be from 1 to 512"),
        ({"max_ngram": 3.0}, r"config\.data\.max_ngram=3\.0 should be int"),
        ({"max_span": 0}, r"config\.data\.max_span=0 should"),
        ({"span_success": 0.0}, r"span_success=0\.0 should be from 0 to 1, but not 0 or 1"),
        ({"span_success": 1.0}, r"span_success=1\.0 should"),
        ({"random_tokens": "bigram"}, "random_tokens='bigram'; did you mean unigram"),
        ({"span_boundary": True}, 'requires config.data.masking="span"'),
    ],
)
def test_spec_refuses_wrong_values(wrong, message):
    with pytest.raises(UserError, match=message):
        MaskingSpec(20, **wrong)
