"""Windows of tagged sentences and tags from logits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune.tasks.labeled_examples import Words
from bert_jax.finetune.tasks.tagging import predict, token_labels, windows

WORDS = ("hello", "world", "naïve", "hellohello", "3.14", "\u200b", "a")


def sentence(words: tuple[str, ...], *, labelled: bool = True) -> Words:
    labels = tuple(i % 5 for i in range(len(words))) if labelled else None
    return Words("0", words, labels, 1)


def test_a_label_is_on_the_first_piece_of_its_word(tokenizer: Tokenizer) -> None:
    (window,) = windows([sentence(("hello", "hellohello", "a"))], tokenizer, 64)
    pieces = tokenizer.encode_batch(["hello", "hellohello", "a"])
    assert len(pieces[1]) > 1
    special = tokenizer.special
    assert window.token_ids.tolist() == [special.cls, *np.concatenate(pieces), special.sep]
    labels, weights = token_labels(window)
    firsts = np.cumsum([1, len(pieces[0]), len(pieces[1])])
    assert np.flatnonzero(weights).tolist() == window.positions.tolist() == firsts.tolist()
    assert labels[firsts].tolist() == [0, 1, 2]
    assert (labels.dtype, weights.dtype, weights.max()) == (np.int32, np.float32, 1)


def test_a_word_without_pieces_is_unknown_and_has_a_tag(tokenizer: Tokenizer) -> None:
    (window,) = windows([sentence(("hello", "\u200b"))], tokenizer, 64)
    assert window.words.tolist() == [0, 1]
    assert window.token_ids[window.positions[1]] == tokenizer.special.unk


def test_without_labels_nothing_has_a_loss(tokenizer: Tokenizer) -> None:
    (window,) = windows([sentence(("hello",), labelled=False)], tokenizer, 64)
    assert window.labels is None
    assert token_labels(window)[1].sum() == 0


def test_words_beyond_a_row_are_read_with_the_words_before_them(tokenizer: Tokenizer) -> None:
    words = tuple(["hello", "world"] * 12)
    made = windows([sentence(words)], tokenizer, 14)
    assert len(made) > 1
    assert made[0].positions[0] == 1
    assert all(window.positions[0] > 1 for window in made[1:])  # a context
    assert all(len(window.token_ids) <= 14 for window in made)
    assert np.concatenate([window.words for window in made]).tolist() == list(range(24))
    with pytest.raises(UserError, match="rows of 2 tokens have no room for a word"):
        windows([sentence(words)], tokenizer, 2)


@given(
    sentences=st.lists(st.lists(st.sampled_from(WORDS), max_size=30), min_size=1, max_size=4),
    row=st.integers(3, 40),
)
def test_every_word_has_the_tag_of_its_own_piece(tokenizer, sentences, row) -> None:
    made = [sentence(tuple(words)) for words in sentences]
    found = windows(made, tokenizer, row)
    logits = []
    for window in found:
        assert 3 <= len(window.token_ids) <= row
        values = np.zeros((len(window.token_ids), 5))
        labels, weights = token_labels(window)
        values[np.arange(len(labels)), labels] = weights  # logits that give the labels
        logits.append(values)
        for word, position in zip(window.words, window.positions, strict=True):
            pieces = tokenizer.encode_batch([made[window.example].words[word]])[0]
            wanted = pieces[0] if len(pieces) else tokenizer.special.unk
            assert window.token_ids[position] == wanted
    tags = predict(made, found, logits)
    assert [tuple(one) for one in tags] == [one.labels for one in made]
