"""Statistics of every masking mode on real text against their formulas, two-sided 1e-5 each."""

import itertools
import math
from fractions import Fraction

import numpy as np
import original_generator as original
import original_masks as port
import pytest
from masked_examples import make_rows

from bert_jax.data_pipeline.masking.masking_settings import MODES
from bert_jax.data_pipeline.masking.replace import replace_tokens
from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.sources import SourceSpec, read
from bert_jax.data_pipeline.text import sentences
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

SIGMAS = 4.4
KEY = 17
EXAMPLES = 400
ROOM = 509  # tokens of two segments and their specials in 512


def share(hits, of, probability, slack=0.0):
    error = math.sqrt(probability * (1 - probability) / of)
    assert abs(hits / of - probability) <= SIGMAS * error + slack, (hits / of, probability, error)


@pytest.fixture(scope="module")
def vocabulary(real_data):
    return Tokenizer.load(real_data / "vocab/bert-base-uncased-vocab.txt")


@pytest.fixture(scope="module")
def starts(vocabulary):
    return vocabulary.word_starts.tolist()


@pytest.fixture(scope="module")
def examples(vocabulary, real_wiki_files, real_books):
    """Pairs of neighbouring runs of sentences, 509 tokens together, half from each source."""
    made = []
    for kind, folder in (
        ("wikiextractor", real_wiki_files[0].parent),
        ("books", real_books[0].parent.parent),
    ):
        spec, enough = SourceSpec(kind=kind, path=folder, name=kind), len(made) + EXAMPLES // 2
        files = real_wiki_files[:1] if kind == "wikiextractor" else real_books[:1]
        for document in itertools.chain.from_iterable(read(spec, file) for file in files):
            lines = sentences.split(document.text, "en")
            ids = list(itertools.chain(*(i.tolist() for i in vocabulary.encode_batch(lines))))
            for at in range(0, len(ids) - ROOM, ROOM):
                made.append([ids[at : at + 200 + at % 100], ids[at + 200 + at % 100 : at + ROOM]])
            if len(made) >= enough:
                break
        made = made[:enough]
    assert len(made) == EXAMPLES
    return made


def flat(examples):
    return np.concatenate([segment for example in examples for segment in example])


def masked(examples, vocabulary, spec):
    """Of each example: plain ids, masked ids, positions, and the whole row."""
    batch = make_rows(
        [[example] for example in examples], spec, KEY,
        vocab_size=vocabulary.vocab_size, word_starts=vocabulary.word_starts,
        token_counts=np.bincount(flat(examples), minlength=vocabulary.vocab_size),
    )  # fmt: skip
    for line in range(len(examples)):
        row = {name: values[line] for name, values in batch.items()}
        count = int(row["masked_weights"].sum())
        positions = row["masked_positions"][:count]
        plain = row["input_ids"].copy()
        plain[positions] = row["masked_labels"][:count]
        yield plain, row["input_ids"], positions, row


def places_of(example):
    return port.lay_out(example, None, None)[1]


@pytest.mark.parametrize(
    "mode",
    [
        name
        for name, mode in MODES.items()
        if mode.replace is replace_tokens and mode.draws_specials
    ],
)
def test_tokens_are_replaced_each_on_its_own(mode, examples, vocabulary):
    kinds = np.zeros(3, np.int64)
    total = after_mask = mask_again = 0
    for plain, ids, positions, _ in masked(examples, vocabulary, MaskingSpec(77, masking=mode)):
        is_mask, kept = ids[positions] == 4, ids[positions] == plain[positions]
        kinds += [is_mask.sum(), (~is_mask & ~kept).sum(), kept.sum()]
        total += len(positions)
        neighbours = np.diff(positions) == 1
        after_mask += is_mask[:-1][neighbours].sum()
        mask_again += (is_mask[:-1] & is_mask[1:])[neighbours].sum()
    slack = 5 / total  # a random id may be [MASK] or the token itself
    for hits, probability in zip(kinds, (0.8, 0.1, 0.1), strict=True):
        share(hits, total, probability, slack)
    share(mask_again, after_mask, 0.8)  # whatever became of the token before


@pytest.mark.parametrize("mode", MODES)
def test_masked_share(mode, examples, vocabulary, starts):
    """Exactly the published number; less only where no word is left that would fit."""
    row = MODES[mode]
    wanted = min(77, row.wanted(0.15, ROOM + 3 * row.counts_specials))  # 77 = round(.15 * 512)
    for (plain, _, positions, _), example in zip(
        masked(examples, vocabulary, MaskingSpec(77, masking=mode)), examples, strict=True
    ):
        assert len(positions) == wanted if row.exact else len(positions) <= wanted
        if mode == "roberta":
            assert len(positions) in (76, 77)  # int(.15 * 512 + U), U from 0 to 1
        elif mode == "whole_word" and len(positions) < wanted:
            left = set(itertools.chain(*places_of(example))) - set(positions.tolist())
            words = port.words_of(
                sorted(itertools.chain(*places_of(example))), plain.tolist(), starts
            )
            free = [len(word) for word in words if set(word) <= left]
            assert min(free) > wanted - len(positions)


def test_lengths_of_ngrams(examples, vocabulary, starts):
    """The numbers drawn, by the port, after it has masked the same tokens."""
    drawn = np.zeros(3, np.int64)
    for number, (_, _, positions, _) in enumerate(
        masked(examples, vocabulary, MaskingSpec(77, masking="ngram"))
    ):
        rng = port.Streams(original.fold(KEY, number))
        chosen, lengths = port.ngrams(examples[number], starts, 77, 0.15, rng)
        assert sorted(chosen) == positions.tolist()
        drawn += np.bincount(lengths, minlength=4)[1:]
    assert drawn.sum() > 10_000
    for hits, probability in zip(drawn, (6 / 11, 3 / 11, 2 / 11), strict=True):
        share(hits, drawn.sum(), probability)  # .545, .273, .182


def test_lengths_of_spans(examples, vocabulary, starts):
    """The numbers drawn, by the port, after it has masked the same tokens."""
    drawn = np.zeros(10, np.int64)
    for number, (_, _, positions, row) in enumerate(
        masked(examples, vocabulary, MaskingSpec(77, masking="span"))
    ):
        rng = port.Streams(original.fold(KEY, number))
        merged, lengths = port.spans(examples[number], starts, 77, 0.15, rng)
        assert list(itertools.chain(*merged)) == positions.tolist()
        weights = [line[-1] for line in port.boundaries(examples[number], merged)]
        assert row["span_weights"][: len(positions)].tolist() == weights
        drawn += np.bincount(lengths, minlength=11)[1:]
    assert drawn.sum() > 5000
    geometric = 0.2 * 0.8 ** np.arange(10)
    for hits, probability in zip(drawn, geometric / geometric.sum(), strict=True):
        share(hits, drawn.sum(), probability)
    assert float(Fraction(drawn @ np.arange(1, 11)) / drawn.sum()) == pytest.approx(3.8, abs=0.15)


def test_a_span_is_replaced_as_one(examples, vocabulary):
    kinds = np.zeros(3, np.int64)
    for (plain, ids, positions, _), example in zip(
        masked(examples, vocabulary, MaskingSpec(77, masking="span")), examples, strict=True
    ):
        first = [s[0] for s in places_of(example)]
        cuts = [k for k in range(1, len(positions))
                if positions[k] != positions[k - 1] + 1 or positions[k] in first]  # fmt: skip
        for span in np.split(positions, cuts):
            is_mask, kept = ids[span] == 4, ids[span] == plain[span]
            if is_mask.all():
                kinds[0] += 1
            elif kept.all():
                kinds[2] += 1
            else:  # random: hardly a token is drawn that stands there, or [MASK]
                assert (kept | is_mask).sum() <= 1
                kinds[1] += 1
    for hits, probability in zip(kinds, (0.8, 0.1, 0.1), strict=True):
        share(hits, kinds.sum(), probability, slack=2 / kinds.sum())


@pytest.mark.parametrize("mode", ["whole_word", "ngram"])
def test_whole_words(mode, examples, vocabulary, starts):
    many = 0
    for (plain, _, positions, _), example in zip(
        masked(examples, vocabulary, MaskingSpec(77, masking=mode)), examples, strict=True
    ):
        segments = places_of(example)
        if mode == "whole_word":  # a piece at the start of a segment joins the word before it
            segments = [list(itertools.chain(*segments))]
        taken = set(positions.tolist())
        for segment in segments:
            for word in port.words_of(segment, plain.tolist(), starts):
                assert len(taken & set(word)) in (0, len(word))
                many += len(word) > 1 and word[0] in taken
    assert many > 1000  # words of several pieces


def test_every_word_is_chosen_alike(examples, vocabulary, starts):
    """A whole-word budget of a single token takes any one-piece word of the example alike."""
    spec = MaskingSpec(1, masking="whole_word")
    halves = np.zeros(2, np.int64)
    expected = variance = 0.0
    for (plain, _, positions, _), example in zip(
        masked(examples, vocabulary, spec), examples, strict=True
    ):
        places = list(itertools.chain(*places_of(example)))
        words = port.words_of(places, plain.tolist(), starts)
        single = [word[0] for word in words if len(word) == 1]
        assert positions.tolist()[0] in single
        early = sum(position < 256 for position in single) / len(single)
        halves[int(positions[0] < 256)] += 1
        expected, variance = expected + early, variance + early * (1 - early)
    assert abs(halves[1] - expected) <= SIGMAS * math.sqrt(variance)
