"""Words of tokenizers that mark where words end, as herBERT's and PhoBERT's, are masked whole."""

import json
from itertools import accumulate, pairwise

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from masked_examples import make_example
from tokenizers import models, pre_tokenizers, trainers

from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.tokenizer.json_file import SPECIAL_TOKENS
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.data_pipeline.tokenizer.word_starts import BEGINS, NEXT_BEGINS

LETTERS = "abcdef"
END = "</w>"
SPLITS = {
    "herbert": pre_tokenizers.BertPreTokenizer(),  # punctuation is words
    "phobert": pre_tokenizers.WhitespaceSplit(),
}
words = st.text(f"{LETTERS}.", min_size=1, max_size=7)
texts = st.lists(words, min_size=1, max_size=12).map(" ".join)


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    """A BPE of characters with pieces inside and at the end of words."""
    rng, found = np.random.default_rng(0), {}
    lines = [" ".join("".join(rng.choice([*LETTERS, "."], 4)) for _ in range(9)) for _ in range(99)]
    for name, split in SPLITS.items():
        encoder = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]", end_of_word_suffix=END))
        encoder.pre_tokenizer = split
        specials = list(SPECIAL_TOKENS)
        trainer = trainers.BpeTrainer(
            vocab_size=60, end_of_word_suffix=END, special_tokens=specials, show_progress=False
        )
        encoder.train_from_iterator(lines, trainer)
        found[name] = Tokenizer(encoder.to_str().encode())
    return found


def starts_of(tokenizer: Tokenizer, name: str, text: str, at: int) -> list[int]:
    """Where the words of a segment begin in the row, and where it ends."""
    found = [word for word, _ in SPLITS[name].pre_tokenize_str(text)]
    return [*accumulate(map(len, tokenizer.encode_batch(found)), initial=at)]


@pytest.mark.parametrize("mode", ["whole_word", "ngram", "span"])
@pytest.mark.parametrize("name", SPLITS)
@given(segments=st.lists(texts, min_size=1, max_size=2), key=st.integers(0, 2**32))
def test_words_of_the_text_are_masked_whole(trained, name, mode, segments, key):
    tokenizer, at, bounds = trained[name], 1, []
    for text in segments:
        bounds.append(starts_of(tokenizer, name, text, at))
        at = bounds[-1][-1] + 1  # [SEP]
    _, positions, _, _ = make_example(
        [ids.tolist() for ids in tokenizer.encode_batch(segments)],
        MaskingSpec(99, masking=mode, mask_rate=0.4),
        key,
        vocab_size=tokenizer.vocab_size,
        word_starts=tokenizer.word_starts,
    )
    masked = set(positions)
    for segment in bounds:
        if mode == "span":  # the budget may cut the last span within a word
            begun = [p for p in masked if segment[0] <= p < segment[-1] and p - 1 not in masked]
            assert set(begun) <= set(segment)
        else:
            for begin, end in pairwise(segment):
                assert len(masked.intersection(range(begin, end))) in (0, end - begin)


@pytest.mark.parametrize("name", SPLITS)
def test_pieces_say_that_a_word_begins_after_them(trained, name):
    tokenizer = trained[name]
    vocab = json.loads(tokenizer.json)["model"]["vocab"]
    ends = [id for piece, id in vocab.items() if piece.endswith(END)]
    assert 9 < len(ends) < len(vocab) - 9
    assert set(np.flatnonzero(tokenizer.word_starts & NEXT_BEGINS)) == {*ends, *tokenizer.special}
    assert set(np.flatnonzero(tokenizer.word_starts & BEGINS)) == set(tokenizer.special)
