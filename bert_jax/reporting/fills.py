"""Held-out sentences for pages, and how often a model finds the words hidden in them."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from bert_jax.data_pipeline.analysis.hidden_words import (
    HiddenWord,
    as_text,
    joined,
    sentence_tokens,
)
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

_SAMPLED = 100_000  # sentences from which examples are drawn
_COUNTED = 5_000_000  # tokens in which followers are counted
_SHORTEST = 8  # tokens of a sentence that is shown
_ENOUGH = 6  # words from which one can be guessed


def sample_sentences(store: TokenStore, count: int = 4) -> list[str]:
    """Returns sentences from the beginning of the training text, drawn with a fixed seed."""
    tokenizer, split = Tokenizer.load(store.tokenizer_path), store.train
    lengths = split.sentence_lengths[:_SAMPLED]
    long_enough = np.flatnonzero(lengths >= _SHORTEST)
    ends = np.cumsum(lengths, dtype=np.int64)
    drawn = np.random.default_rng(0).permutation(long_enough)[:count]
    return [as_text(joined(sentence_tokens(tokenizer, split, ends, i))) for i in sorted(drawn)]


def to_type(sentences: Iterable[str]) -> str:
    """Returns the shortest of sentences with a mask that has enough words, if possible one that a
    shell can quote simply."""
    return min(
        sentences,
        key=lambda text: (len(text.split()) < _ENOUGH, "'" in text, len(text)),
        default="This is the [MASK].",
    )


def most_frequent_words(store: TokenStore, count: int) -> list[str]:
    """Returns the most frequent words of the training text that are one token."""
    tokenizer = Tokenizer.load(store.tokenizer_path)
    order = np.argsort(-store.train.token_counts, kind="stable")
    tokens = (tokenizer.token(int(i)) for i in order)
    words = (token for token in tokens if token.isalnum())
    return [word for word, _ in zip(words, range(count), strict=False)]


def followers(store: TokenStore, hidden: Sequence[HiddenWord], count: int) -> list[list[str]]:
    """Returns, for each hidden word, the words that follow the token on its left most often in the
    first millions of tokens of the training text; none at the beginning of a sentence."""
    tokenizer = Tokenizer.load(store.tokenizer_path)
    entries = {tokenizer.token(i): i for i in range(store.vocab_size)}
    tokens = np.asarray(store.train.tokens[:_COUNTED]).astype(np.int64)
    order = np.argsort(tokens[:-1], kind="stable")
    starts = np.searchsorted(tokens[:-1][order], np.arange(store.vocab_size + 1))

    def guesses(left: str) -> list[str]:
        if not left:
            return []
        places = order[starts[entries[left]] : starts[entries[left] + 1]]
        counts = np.bincount(tokens[places + 1])
        common = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        words = filter(str.isalnum, map(tokenizer.token, common.tolist()))
        return [*itertools.islice(words, count)]

    return [guesses(each.left) for each in hidden]


def found_rate(hidden: Sequence[HiddenWord], guesses: Sequence[Sequence[str]]) -> float:
    """Returns the fraction of the hidden words that are among the guesses for them."""
    pairs = zip(hidden, guesses, strict=True)
    return sum(h.word in words for h, words in pairs) / max(len(hidden), 1)
