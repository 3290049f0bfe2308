"""The draws of `frequency` and `with_replacement`: against exact probabilities."""

from fractions import Fraction

import numpy as np
import original_generator as original
import pytest
from hypothesis import given
from hypothesis import strategies as st
from masked_examples import SPECIAL, make_example, make_rows

from bert_jax.config.schema import Config
from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.random.counter_rng import below_sum
from bert_jax.errors import UserError

VOCAB = 60
SIGMAS = 4.4  # two-sided 1e-5, the keys being fixed
COUNTS = np.zeros(VOCAB, np.int64)
COUNTS[10:16] = [0, 1, 9, 500, 40_000, 3_000_000]
TOKENS = [10, 11, 12, 13, 14, 15]
VOCABULARY = {"vocab_size": VOCAB, "word_starts": None, "token_counts": COUNTS}


def positions_of(segment, spec, key):
    return make_example([segment], spec, original.fold(9, key), **VOCABULARY)[1]


def weights(exponent):
    """Of TOKENS, from the formula."""
    return np.maximum(COUNTS[TOKENS], 1.0) ** -exponent


def fits(found, chances):
    """Whether counts agree with probabilities, by their chi-square and its standard deviation."""
    expected = found.sum() * chances
    chi, free = ((found - expected) ** 2 / expected).sum(), len(found) - 1
    return abs(chi - free) < SIGMAS * (2 * free + (1 / expected).sum()) ** 0.5


@given(bits=st.integers(0, 2**64 - 1), total=st.integers(1, 2**63 - 1))
def test_a_draw_below_a_large_sum_is_the_high_word_of_the_product(bits, total):
    assert below_sum(np.uint64(bits), total) == bits * total >> 64


@pytest.mark.parametrize("exponent", [0.0, 0.3, 0.7, 1.0])
def test_the_first_token_is_drawn_by_its_weight(exponent):
    spec = MaskingSpec(1, masking="frequency", frequency_exponent=exponent)
    found = np.zeros(len(TOKENS), np.int64)
    for key in range(4000):
        (position,) = positions_of(TOKENS, spec, key)
        found[position - 1] += 1
    chances = weights(exponent) / weights(exponent).sum()
    assert fits(found, chances)
    assert fits(found, np.full(len(TOKENS), 1 / 6)) == (exponent == 0)


def test_two_tokens_are_drawn_by_the_weights_of_those_left():
    spec = MaskingSpec(2, masking="frequency", mask_rate=0.25)
    found: dict[tuple[int, ...], int] = {}
    for key in range(6000):
        drawn = tuple(positions_of(TOKENS[:4], spec, key))
        found[drawn] = found.get(drawn, 0) + 1
    w = weights(0.7)[:4] / weights(0.7)[:4].sum()
    chances = {
        (a + 1, b + 1): w[a] * w[b] / (1 - w[a]) + w[b] * w[a] / (1 - w[b])
        for a in range(4)
        for b in range(a + 1, 4)
    }
    assert sum(chances.values()) == pytest.approx(1)
    pairs = sorted(chances)
    assert fits(np.array([found[pair] for pair in pairs]), np.array([chances[p] for p in pairs]))


@pytest.mark.parametrize(
    ("tokens", "rate", "expected"), [(126, 0.15, 20), (18, 0.15, 3), (19, 0.15, 4), (1, 0.15, 1)]
)
def test_the_number_of_tokens_by_frequency_counts_specials_and_rounds_up(tokens, rate, expected):
    spec = MaskingSpec(600, masking="frequency", mask_rate=rate)
    assert len(positions_of([12] * tokens, spec, 0)) == expected
    assert spec.predictions(tokens + 2)[tokens + 2] == expected


def test_no_special_id_is_selected_by_frequency():
    spec = MaskingSpec(600, masking="frequency", mask_rate=1.0)
    assert positions_of([12, SPECIAL.unk, 13, SPECIAL.mask], spec, 0) == [1, 3]
    assert positions_of([SPECIAL.unk] * 8, spec, 0) == []


def test_the_exponent_is_a_setting():
    config = Config().replace("data.frequency_exponent", 0.5)
    assert config.data.frequency_exponent == 0.5
    with pytest.raises(UserError, match=r"data\.frequency_exponent=1\.5 should be from 0 to 1"):
        Config().replace("data.frequency_exponent", 1.5)


def test_positions_are_drawn_alike_with_replacement():
    """A slot holds each position with the same probability, whatever the others hold."""
    spec, tokens = MaskingSpec(19, masking="with_replacement"), 124
    found, distinct, keys = np.zeros(tokens, np.int64), 0, 2000
    for key in range(keys):
        positions = positions_of([12] * tokens, spec, key)
        assert len(positions) == 19 == round(0.15 * 126)
        found += np.bincount(positions, minlength=tokens + 1)[1:]
        distinct += len(set(positions))
    assert fits(found, np.full(tokens, 1 / tokens))
    none, neither = Fraction(tokens - 1, tokens) ** 19, Fraction(tokens - 2, tokens) ** 19
    mean = tokens * (1 - none)
    variance = tokens * none + tokens * (tokens - 1) * neither - (tokens * none) ** 2
    assert abs(distinct / keys - mean) < SIGMAS * float(variance / keys) ** 0.5


def test_a_position_drawn_twice_is_masked_once_and_predicted_twice():
    spec = MaskingSpec(
        40, masking="with_replacement", mask_rate=0.8, mask_share=0.85, random_share=0.0
    )
    masked = chosen = 0
    for key in range(1500):
        ids, positions, labels, _ = make_example(
            [[12, 13, 14, 15]], spec, original.fold(5, key), **VOCABULARY
        )
        assert positions == sorted(positions)
        assert labels == [[12, 13, 14, 15][position - 1] for position in positions]
        twice = {position for position in positions if positions.count(position) > 1}
        masked += sum(ids[position] == SPECIAL.mask for position in twice)
        chosen += len(twice)
    assert abs(masked / chosen - 0.85) < SIGMAS * (0.85 * 0.15 / chosen) ** 0.5


def test_slots_of_a_repeated_position_are_alike():
    spec = MaskingSpec(8, masking="with_replacement", mask_rate=0.9)
    batch = make_rows([[[[12, 13]], [[14, 15, 12]]]], spec, 3, **VOCABULARY)
    count = int(batch["masked_weights"].sum())
    assert count == 2 + 3
    positions, labels = (batch[f"masked_{name}"][0, :count] for name in ("positions", "labels"))
    row = np.array([2, 12, 13, 3, 2, 14, 15, 12, 3])
    np.testing.assert_array_equal(labels, row[positions])
