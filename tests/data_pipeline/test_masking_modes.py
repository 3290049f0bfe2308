"""All masking modes but `token`: against plain ports of the originals, edge cases, packed rows."""

import itertools
from fractions import Fraction

import numpy as np
import original_generator as original
import original_masks as port
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from masked_examples import SPECIAL, make_example, make_rows

from bert_jax.data_pipeline.masking.masking_settings import MODES
from bert_jax.data_pipeline.masking.replace import cumulative_limits
from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.random import counter_rng
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

VOCAB = 60
STARTS = np.arange(VOCAB) % 3 != 0  # a third of the ids continue a word
COUNTS = np.arange(VOCAB) % 7 * 1000  # some ids never occur
NOT_DRAWN = (SPECIAL.pad, SPECIAL.unk, SPECIAL.cls, SPECIAL.sep)
VOCABULARY = {"vocab_size": VOCAB, "word_starts": STARTS, "token_counts": COUNTS}
ORIGINALS = (
    "whole_word", "ngram", "span", "roberta", "frequency", "with_replacement",
)  # fmt: skip
# which `ported` has

segment = st.lists(st.integers(5, VOCAB - 1), min_size=1, max_size=120)
examples = st.lists(segment, min_size=1, max_size=4)
keys = st.integers(0, 2**64 - 1)
rates = st.sampled_from([0.0, 0.05, 0.15, 0.4, 1.0])
slots = st.sampled_from([1, 5, 20, 600])


def ported(segments, spec, key):
    """The expected output of `make_example`, from the ports."""
    rng = port.Streams(original.fold(key, 0))
    counts = COUNTS.tolist() if spec.random_tokens == "unigram" else None
    ids, _ = port.lay_out(segments, SPECIAL.cls, SPECIAL.sep)
    how = (SPECIAL.mask, VOCAB, counts, Fraction(4, 5), Fraction(1, 10))
    size = spec.max_predictions
    if spec.masking == "roberta":
        cls, sep, not_drawn = SPECIAL.cls, SPECIAL.sep, NOT_DRAWN
        mask_id, vocab_size, counts, *shares = how
        return (
            *port.roberta(
                segments, cls, sep, size, spec.mask_rate, rng, mask_id, vocab_size, counts,
                not_drawn, *shares,
            ),
            None,
        )  # fmt: skip
    if spec.masking == "span":
        merged, _ = port.spans(
            segments, STARTS, size, spec.mask_rate, rng, spec.span_success, spec.max_span
        )
        return (
            *port.replace_spans(ids, merged, rng.replace, *how),
            port.boundaries(segments, merged),
        )
    if spec.masking == "with_replacement":
        chosen = port.with_replacement(segments, size, spec.mask_rate, rng)
        return (*port.replace_once(ids, chosen, rng.replace, *how), None)
    if spec.masking == "frequency":
        specials, exponent = (*NOT_DRAWN, SPECIAL.mask), spec.frequency_exponent
        chosen = port.by_frequency(
            segments, size, spec.mask_rate, rng, COUNTS.tolist(), specials, exponent
        )
    elif spec.masking == "whole_word":
        chosen = port.whole_words(segments, STARTS, size, spec.mask_rate, rng)
    else:
        chosen, _ = port.ngrams(segments, STARTS, size, spec.mask_rate, rng, spec.max_ngram)
    return (*port.replace_each(ids, chosen, rng.replace, *how), None)


@pytest.mark.parametrize("random_tokens", ["uniform", "unigram"])
@pytest.mark.parametrize("mode", ORIGINALS)
@settings(max_examples=150, deadline=None)
@given(segments=examples, key=keys, rate=rates, most=slots)
def test_masks_equal_the_originals(mode, random_tokens, segments, key, rate, most):
    spec = MaskingSpec(most, masking=mode, mask_rate=rate, random_tokens=random_tokens)
    assert make_example(segments, spec, key, **VOCABULARY) == ported(segments, spec, key)


@settings(max_examples=60, deadline=None)
@given(
    segments=examples,
    key=keys,
    max_ngram=st.integers(1, 6),
    success=st.sampled_from([0.01, 0.5, 0.99]),
    max_span=st.integers(1, 30),
)
def test_lengths_by_choice_equal_the_originals(segments, key, max_ngram, success, max_span):
    for spec in (
        MaskingSpec(600, masking="ngram", mask_rate=0.4, max_ngram=max_ngram),
        MaskingSpec(600, masking="span", mask_rate=0.4, span_success=success, max_span=max_span),
    ):
        assert make_example(segments, spec, key, **VOCABULARY) == ported(segments, spec, key)


def masked_blocks(mode, segments, key, rate=0.15, most=600, **choices):
    """Positions of each segment's tokens, the example's words, and the masked positions."""
    spec = MaskingSpec(most, masking=mode, mask_rate=rate, **choices)
    _, positions, labels, _ = make_example(segments, spec, key, **VOCABULARY)
    ids, places = port.lay_out(segments, SPECIAL.cls, SPECIAL.sep)
    assert labels == [ids[position] for position in positions]
    assert positions == sorted(positions if MODES[mode].repeats else set(positions))
    may = range(len(ids)) if MODES[mode].masks_specials else itertools.chain(*places)
    assert set(positions) <= set(may)
    return spec, ids, places, positions


def law(mode, segments, rate, most=600):
    """The number of masked tokens that the mode's file states; the most, if it is not exact."""
    row, count, specials = MODES[mode], sum(map(len, segments)), 1 + len(segments)
    wanted = row.wanted(rate, count + specials * row.counts_specials)
    return min(wanted, most, count + specials * row.masks_specials)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=60, deadline=None)
@given(segments=examples, key=keys, rate=rates, most=slots)
def test_never_more_than_announced(mode, segments, key, rate, most):
    spec, ids, places, positions = masked_blocks(mode, segments, key, rate, most)
    assert len(positions) <= spec.predictions(len(ids))[len(ids)] <= most
    wanted = law(mode, segments, rate, most)
    assert len(positions) == wanted if MODES[mode].exact else len(positions) <= wanted
    if mode == "span":  # exactly the published number, unless the cap is lower
        count = sum(map(len, places))
        assert len(positions) == min(most, -(-count * Fraction(str(rate)) // 1))


@pytest.mark.parametrize("mode", ["whole_word", "ngram"])
@settings(max_examples=60, deadline=None)
@given(segments=examples, key=keys, rate=rates)
def test_words_are_masked_whole(mode, segments, key, rate):
    _, ids, places, positions = masked_blocks(mode, segments, key, rate)
    if mode == "whole_word":  # a piece at the start of a segment joins the word before it
        places = [list(itertools.chain(*places))]
    for segment in places:
        for word in port.words_of(segment, ids, STARTS):
            assert set(word) <= set(positions) or not set(word) & set(positions)


@settings(max_examples=60, deadline=None)
@given(segments=examples, key=keys, rate=rates)
def test_spans_begin_words_and_at_most_one_is_cut(segments, key, rate):
    _, ids, places, positions = masked_blocks("span", segments, key, rate)
    words = [word for s in places for word in port.words_of(s, ids, STARTS)]
    cut = [w for w in words if set(w) & set(positions) and not set(w) <= set(positions)]
    assert len(cut) <= 1
    for word in cut:  # its front is masked
        assert word[: len(set(word) & set(positions))] == sorted(set(word) & set(positions))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "segments",
    [
        [[7]],  # one token
        [[6]],  # one piece that does not begin a word
        [[6, 9, 12, 15] * 40],  # only continuations: one word
        [[7, 6, 6], [6, 6, 9], [7]],
        [list(range(5, 60)) * 9],
    ],
)
def test_everything_masked(mode, segments):
    expected = sum(map(len, segments))
    expected += 1 + len(segments) if MODES[mode].masks_specials else 0
    _, _, _, positions = masked_blocks(mode, segments, 5, rate=1.0)
    if mode == "ngram" and len(segments[0]) > 200:  # words between longer n-grams are left
        assert expected * 0.8 < len(positions) < expected
    elif MODES[mode].exact or mode in ORIGINALS:
        assert len(positions) == expected == law(mode, segments, 1.0)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("token", 1), ("whole_word", 1), ("ngram", 0), ("span", 0), ("roberta", 0),
     ("frequency", 0), ("with_replacement", 1)],
)  # fmt: skip
def test_rate_zero_is_the_originals(mode, expected):
    spec = MaskingSpec(20, masking=mode, mask_rate=0.0)
    _, positions, _, _ = make_example([[7, 8, 10]], spec, 3, **VOCABULARY)
    assert len(positions) == expected


@pytest.mark.parametrize("mode", ["whole_word", "ngram"])
def test_a_word_beyond_the_budget_is_passed_over(mode):
    long_word = [7, *[6] * 30]
    for key in range(40):
        _, _, places, positions = masked_blocks(mode, [[*long_word, 8, 10, 11]], key, most=3)
        short = places[0][31:]
        assert positions == short if mode == "whole_word" else set(positions) <= set(short)
        assert positions
        assert masked_blocks(mode, [long_word], key, most=3)[3] == []


def test_spans_cut_a_word_beyond_the_budget():
    _, _, _, positions = masked_blocks("span", [[7, *[6] * 30]], 0, most=3)
    assert positions == [1, 2, 3]


@pytest.mark.parametrize("mode", ["ngram", "span"])
def test_nothing_reaches_over_a_separator(mode):
    """Long n-grams and spans in one-word segments: each would continue if it could."""
    choices = {"max_ngram": 10, "span_success": 0.01}
    segments = [[7], [8], [10], [11], [13]] * 4
    for key in range(30):
        spec = MaskingSpec(600, masking=mode, mask_rate=0.15, **choices)
        ids, positions, _, lines = make_example(segments, spec, key, **VOCABULARY)
        assert all(right - left > 1 for left, right in itertools.pairwise(positions))
        assert [ids[p] for p in range(2, len(ids), 2)] == [SPECIAL.sep] * len(segments)
        assert lines is None or not any(weight for *_, weight in lines)  # all touch an edge


def test_boundaries_lie_beside_their_span():
    words = [7] * 60
    seen = set()
    for key in range(40):
        _, positions, _, lines = make_example([words, words], MaskingSpec(77, masking="span"), key,
                                              **VOCABULARY)  # fmt: skip
        for position, (left, right, offset, weight) in zip(positions, lines, strict=True):
            seen.add(weight)
            if weight:
                assert offset == position - left - 1 < 15
                assert left not in positions
                assert right not in positions
                assert set(range(left + 1, right)) <= set(positions)
    assert seen == {0.0, 1.0}


def test_only_the_first_fifteen_pieces_have_targets():
    word = [7, *[6] * 39]
    spec = MaskingSpec(40, masking="span", mask_rate=0.95, span_success=0.99, max_span=1)
    _, positions, _, lines = make_example([[8, *word, 8]], spec, 1, **VOCABULARY)
    assert positions == list(range(2, 42)) or len(positions) == 40
    for key in range(30):
        _, positions, _, lines = make_example([[8, *word, 8]], spec, key, **VOCABULARY)
        if positions == list(range(2, 42)):
            assert lines == [(1, 42, k, 1.0) for k in range(15)] + [(0, 0, 0, 0.0)] * 25
            return
    raise AssertionError("no key masks the long word alone")


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40, deadline=None)
@given(packed=st.lists(examples, min_size=1, max_size=6), key=keys)
def test_packing_changes_no_masks(mode, packed, key):
    """A packed row equals the concatenated rows of its examples."""
    spec = MaskingSpec(60, masking=mode)
    together = make_rows([packed], spec, key, **VOCABULARY)
    alone = make_rows([[example] for example in packed], spec, key, **VOCABULARY)
    at = slot = 0
    for line in range(len(packed)):
        length = int((alone["example_ids"][line] > 0).sum())
        count = int(alone["masked_weights"][line].sum())
        here, there = slice(at, at + length), slice(0, length)
        for name in ("input_ids", "token_type_ids", "position_ids"):
            np.testing.assert_array_equal(together[name][0, here], alone[name][line, there])
        here, there = slice(slot, slot + count), slice(0, count)
        for name in together:
            if name.startswith(("masked", "span")):
                shift = 0
                if name == "masked_positions":
                    shift = at
                elif name in ("span_left", "span_right"):
                    shift = at * (alone["span_weights"][line, there] > 0)
                expected = alone[name][line, there] + shift
                np.testing.assert_array_equal(together[name][0, here], expected, err_msg=name)
        at, slot = at + length, slot + count
    assert together["masked_weights"][0, slot:].sum() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "most"), [(0.15, 600), (0.15, 77), (0.4, 600)])
def test_robertas_number_is_rounded_at_random(rate, most):
    """int(rate·n + U): rate·n is rounded up with its fractional part as probability."""
    for length in (2, 3, 6, 7, 20, 33, 512):
        wanted = rate * length
        upper = sum(
            len(masked_blocks("roberta", [[7] * max(length - 2, 0)], key, rate, most)[3])
            - int(wanted)
            for key in range(400)
        )
        chance = wanted - int(wanted)
        assert abs(upper / 400 - chance) <= 4.4 * (chance * (1 - chance) / 400) ** 0.5
        spec = MaskingSpec(most, masking="roberta", mask_rate=rate)
        assert spec.predictions(length)[length] == -(-wanted // 1)


def test_roberta_needs_no_more_slots_than_the_recipes_have():
    assert MaskingSpec(77, masking="roberta").predictions(512)[512] == 77
    for key in range(60):  # cut, never spilt
        assert len(masked_blocks("roberta", [[7] * 510], key, most=70)[3]) == 70


@pytest.mark.slow
def test_roberta_chooses_every_position_alike_specials_too():
    counts = np.zeros(40, np.int64)
    for key in range(4000):
        counts[masked_blocks("roberta", [[7] * 18, [8] * 19], original.fold(3, key))[3]] += 1
    expected = counts.sum() / 40
    assert abs(counts.sum() - 4000 * 6) <= 3 * (4000 * 0.25) ** 0.5
    chi = ((counts - expected) ** 2 / expected).sum() / (1 - 6 / 40)  # drawn without replacement
    assert chi < 39 + 4.4 * (2 * 39) ** 0.5


def test_roberta_replaces_as_published_and_draws_no_special_but_mask():
    found, kinds = np.zeros(VOCAB, np.int64), np.zeros(3, np.int64)
    for key in range(60):
        spec = MaskingSpec(600, masking="roberta", mask_rate=1.0)
        after, positions, labels, _ = make_example([[7] * 500], spec, key, **VOCABULARY)
        spec = MaskingSpec(600, masking="roberta", mask_rate=1.0, mask_share=0.0, random_share=1.0)
        drawn, _, _, _ = make_example([[7] * 500], spec, key, **VOCABULARY)
        found += np.bincount(drawn, minlength=VOCAB)
        for position, label in zip(positions, labels, strict=True):
            now = after[position]
            kinds[0 if now == SPECIAL.mask else 1 if now == label else 2] += 1
    assert not found[list(NOT_DRAWN)].any()
    expected = found.sum() / (VOCAB - 4)  # [MASK] among them
    chi = ((np.delete(found, NOT_DRAWN) - expected) ** 2 / expected).sum()
    assert chi < 55 + 4.4 * (2 * 55) ** 0.5
    total = kinds.sum()
    ids = VOCAB - 4
    for hits, share in zip(kinds, (0.8 + 0.1 / ids, 0.1 + 0.1 / ids, 0.1 - 0.2 / ids), strict=True):
        assert abs(hits / total - share) <= 4.4 * (share * (1 - share) / total) ** 0.5


def test_roberta_needs_to_know_the_specials():
    with pytest.raises(ValueError, match="needs not_drawn, the special ids"):
        MaskingSpec(20, masking="roberta").rule(4, VOCAB, 128)


TEXTS = [
    "Plain words, then 👩‍👩‍👧‍👦 and 🏳️‍🌈🏳️‍🌈 in a row 🙂🙂🙂.",
    "שלום עולם, هذا نص عربي طويل بما يكفي لعدة كلمات.",
    "東京都に住んでいます。 北京是中国的首都，人口众多。",
    "zero\u200bwidth \u202eoverride\u202c tabs\tand\x00nulls \x1b[31mred \ufeffmark",
    "Donaudampfschifffahrtsgesellschaftskapitän " * 6,
]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS * 3 + ["the quick brown fox jumps over lazy dogs " * 20], 420)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), key=keys)
def test_any_text(tokenizer, mode, data, key):
    text = st.one_of(st.sampled_from(TEXTS), st.text(min_size=1, max_size=60))
    ids = [i.tolist() for i in tokenizer.encode_batch(data.draw(st.lists(text, min_size=1)))]
    segments = [i for i in ids if i] or [[tokenizer.special.unk]]
    starts = tokenizer.word_starts
    assert starts.dtype == np.uint8
    assert [not tokenizer.token(i).startswith("##") for i in range(len(starts))] == starts.tolist()
    spec = MaskingSpec(600, masking=mode)
    masked, positions, labels, _ = make_example(
        segments, spec, key, vocab_size=tokenizer.vocab_size, word_starts=starts,
        token_counts=np.arange(tokenizer.vocab_size),
    )  # fmt: skip
    plain, places = port.lay_out(segments, SPECIAL.cls, SPECIAL.sep)
    for position, label in zip(positions, labels, strict=True):
        masked[position] = label
    assert masked == plain
    if mode == "whole_word":
        places = [list(itertools.chain(*places))]
    if mode in ("whole_word", "ngram"):
        for segment in places:
            for word in port.words_of(segment, plain, starts):
                assert len(set(word) & set(positions)) in (0, len(word))


def test_unigram_random_ids_come_as_often_as_in_the_text():
    shares = {"mask_share": 0.0, "random_share": 1.0}
    spec = MaskingSpec(10_000, mask_rate=1.0, random_tokens="unigram", **shares)
    found = np.zeros(VOCAB, np.int64)
    for key in range(20):
        masked, positions, _, _ = make_example([[7] * 5000], spec, key, **VOCABULARY)
        found += np.bincount([masked[p] for p in positions], minlength=VOCAB)
    shares = COUNTS / COUNTS.sum()
    assert (found[shares == 0] == 0).all()
    error = np.sqrt(shares * (1 - shares) / found.sum())
    assert (np.abs(found / found.sum() - shares) <= 4.4 * error).all()


def test_limits_are_exact():
    limits = cumulative_limits([0, 1, 0, 2, 0])
    assert limits.tolist() == [0, -(-(2**63) // 3), -(-(2**63) // 3), 2**63, 2**63]
    assert cumulative_limits([5]).tolist() == [counter_rng.threshold(1.0)]


@pytest.mark.parametrize("mode", ["whole_word", "ngram", "span"])
@pytest.mark.parametrize("starts", [None, STARTS[:-1]])
def test_word_starts_are_needed(mode, starts):
    with pytest.raises(ValueError, match=f"{mode} needs 60 word_starts"):
        MaskingSpec(20, masking=mode).rule(4, VOCAB, 128, word_starts=starts)


@pytest.mark.parametrize("counts", [None, COUNTS[:-1], COUNTS * 0])
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (MaskingSpec(20, random_tokens="unigram"), "random tokens need token_counts of 60"),
        (MaskingSpec(20, masking="frequency"), "masking frequency needs token_counts of 60"),
    ],
)
def test_counts_are_needed(spec, message, counts):
    with pytest.raises(ValueError, match=message):
        spec.rule(4, VOCAB, 128, token_counts=counts)
