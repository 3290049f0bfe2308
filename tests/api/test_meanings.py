"""Nearest words and two meanings, of models whose vectors are known."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bert_jax.api.attention import shown_tokens
from bert_jax.api.meanings import entry_of, nearest_words, two_meanings, word_entries
from bert_jax.api.model import Tokens
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import UserError

WORDS = ("bank", "river", "money", "water", "loan", "the", "tree")
TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, *WORDS])
RIVER, MONEY = (
    [f"{a} {b} bank {c} {d}" for a, b, c, d in itertools.permutations(("the", "tree", *words))]
    for words in (("river", "water"), ("money", "loan"))
)


def test_nearest_words_are_those_of_the_smallest_angle() -> None:
    table = np.zeros((TOKENIZER.vocab_size, 2), np.float32)
    for number in range(len(WORDS)):  # ever further from the first, and ever longer
        angle = 0.2 * number
        table[len(SPECIAL_TOKENS) + number] = (number + 1) * np.array(
            [np.cos(angle), np.sin(angle)]
        )
    params = {"encoder": {"embeddings": {"word": table}}}
    model: Any = SimpleNamespace(params=params, tokenizer=TOKENIZER)
    for among in (WORDS, None):
        found = nearest_words(model, ("bank", "Tree"), among, count=2)
        words = {word: [one.word for one in near] for word, near in found.items()}
        assert words == {"bank": ["river", "money"], "Tree": ["the", "loan"]}
        assert found["bank"][1].cosine == pytest.approx(np.cos(0.4), abs=1e-6)
    with pytest.raises(UserError, match=r"^'watre': not in the .* did you mean water\?$"):
        nearest_words(model, ["bank", "watre"])
    with pytest.raises(UserError, match=r"^'the bank': 2 words; give each as an argument"):
        nearest_words(model, ["the bank"])
    with pytest.raises(UserError, match=r"^'b.udcff': character 2 is not Unicode text; give UTF-8"):
        nearest_words(model, ["b\udcff"])


def test_words_are_whole_and_written_as_text() -> None:
    text = "the bank of the river café 日本 東京"
    in_bytes = Tokenizer.train([text] * 9, 330, model="byte_bpe")
    shown = shown_tokens(in_bytes, word_entries(in_bytes))
    assert {"Ġbank", "Ġcafé"} <= {*shown}
    assert not [word for word in shown if not word.startswith("Ġ")]
    assert all(word[1:].isascii() or word[1:] in text for word in shown)
    known = {in_bytes.token(i): i for i in range(in_bytes.vocab_size)}
    assert in_bytes.token(entry_of(in_bytes, "bank", known)) == "Ġbank"
    pieces = Tokenizer.from_vocab([*SPECIAL_TOKENS, "[unused1]", "bank", "##s", ".", "42"])
    assert shown_tokens(pieces, word_entries(pieces)) == ["bank", "42"]
    assert entry_of(pieces, "##s", {"##s": 7}) == 7


class ReadsContext:
    """A model whose states are the mean of a sentence's words: they tell contexts apart."""

    tokenizer = TOKENIZER

    def tokens(self, sentences: list[str]) -> list[Tokens]:
        special = TOKENIZER.special
        return [
            Tokens([special.cls, *ids.tolist(), special.sep], None, 0)
            for ids in TOKENIZER.encode_texts(sentences)
        ]

    def hidden_states(self, sentences: list[str]) -> list[np.ndarray]:
        rng, vectors = np.random.default_rng(0), np.eye(TOKENIZER.vocab_size)
        return [
            vectors[each.ids].mean(axis=0) + 0.01 * rng.normal(size=(len(each.ids), len(vectors)))
            for each in self.tokens(sentences)
        ]


def test_a_word_of_two_contexts_is_found_with_sentences_of_each() -> None:
    model: Any = ReadsContext()
    found = two_meanings(model, [*RIVER, *MONEY, *["the tree"] * 20], shown=2)
    assert found is not None
    assert found.word == "bank"
    one, other = (set(group) for group in found.sentences)
    assert [len(one), len(other)] == [2, 2]
    assert (one < {*RIVER} and other < {*MONEY}) or (one < {*MONEY} and other < {*RIVER})


def test_a_sentence_that_is_repeated_counts_once() -> None:
    model: Any = ReadsContext()
    assert two_meanings(model, [RIVER[0], MONEY[0]] * 10) is None


def test_few_sentences_have_no_two_meanings() -> None:
    model: Any = ReadsContext()
    assert two_meanings(model, [*RIVER[:5], *MONEY[:5]]) is None
    assert two_meanings(model, []) is None
