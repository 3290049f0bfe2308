"""Words hidden in held-out sentences, and how often a model finds them."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data_pipeline.store.split import Split
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

_CLOSING = frozenset([*",.;:!?)]}%\u2019\u201d\u2026"])  # no space before
_OPENING = frozenset([*"([{$#\u2018\u201c"])  # no space after
_JOINING = frozenset([*"-/_@~\u2013\u2014"])  # no space on either side
_QUOTES = frozenset([*"\"'`"])
_CONTRACTED = {"s", "t", "re", "ve", "ll", "d", "m"}  # "it ' s" → "it's"
_SAMPLED = 100_000  # sentences from which examples are drawn
_COUNTED = 5_000_000  # tokens in which followers are counted
_SHORTEST = 8  # tokens of a sentence that is shown
_ENOUGH = 6  # words from which one can be guessed


class HiddenWord(NamedTuple):
    """A sentence with one of its words replaced by the mask token, and that word."""

    sentence: str  # its tokens, separated by spaces
    word: str
    left: str = ""  # the token before the word


def hide_words(
    store: TokenStore, *, seed: int, count: int, longest: int, of_pieces: bool = False
) -> list[HiddenWord]:
    """Hides one word in each of `count` held-out sentences, or in all if there are fewer.

    Sentences are drawn from the entire held-out split, and words from the sentence, each with the
    same probability. A mask stands for one token, so words of several tokens are not hidden.

    Args:
        longest: leaves out sentences of more tokens.
        of_pieces: hides words of several tokens too, which no model finds, and counts words for
            `longest`. Then all vocabularies of a text hide the same words.
    """
    tokenizer, split = Tokenizer.load(store.tokenizer_path), store.held_out
    rng = np.random.default_rng(seed)
    ends = np.cumsum(split.sentence_lengths, dtype=np.int64)
    hidden: list[HiddenWord] = []
    for sentence in rng.permutation(len(ends)):
        tokens = _tokens(tokenizer, split, ends, sentence)
        spans = _spans(tokens)
        length = len(spans if of_pieces else tokens)
        words = [(start, end) for start, end in spans if tokens[start].isalnum()]
        if not of_pieces:
            words = [(start, end) for start, end in words if end - start == 1]
        if words and length <= longest:
            start, end = words[rng.integers(len(words))]
            word, left = _joined(tokens[start:end]), tokens[start - 1] if start else ""
            tokens[start:end] = [tokenizer.token(store.special.mask)]
            hidden.append(HiddenWord(_joined(tokens), word, left))
        if len(hidden) == count:
            break
    return hidden


def sample_sentences(store: TokenStore, count: int = 4) -> list[str]:
    """Returns sentences from the beginning of the training text, drawn with a fixed seed."""
    tokenizer, split = Tokenizer.load(store.tokenizer_path), store.train
    lengths = split.sentence_lengths[:_SAMPLED]
    long_enough = np.flatnonzero(lengths >= _SHORTEST)
    ends = np.cumsum(lengths, dtype=np.int64)
    drawn = np.random.default_rng(0).permutation(long_enough)[:count]
    return [as_text(_joined(_tokens(tokenizer, split, ends, i))) for i in sorted(drawn)]


def to_type(sentences: Iterable[str]) -> str:
    """Returns the shortest of sentences with a mask that has enough words, if possible one that a
    shell can quote simply."""
    return min(
        sentences,
        key=lambda text: (len(text.split()) < _ENOUGH, "'" in text, len(text)),
        default="This is the [MASK].",
    )


def as_text(sentence: str) -> str:
    """Returns a sentence of tokens separated by spaces as running text: "it ' s" → "it's".

    A tokenizer that splits at punctuation produces the same tokens from both.
    """
    words, text, opened, glued = sentence.split(" "), "", set[str](), True
    for word, following in zip(words, [*words[1:], ""], strict=True):
        joins = word in _JOINING or (word == "'" and following in _CONTRACTED)
        closes = word in _CLOSING or word in opened
        text += word if glued or joins or closes else f" {word}"
        glued = joins or word in _OPENING
        if word in _QUOTES and not joins:
            glued = word not in opened
            opened ^= {word}
    return text


def _tokens(tokenizer: Tokenizer, split: Split, ends: np.ndarray, sentence: int) -> list[str]:
    """Returns the tokens of a sentence; ends: of the first sentences, in tokens of the split."""
    start = ends[sentence] - split.sentence_lengths[sentence]
    return [tokenizer.token(i) for i in split.tokens[start : ends[sentence]].tolist()]


def _joined(tokens: Sequence[str]) -> str:
    """Returns words separated by spaces, their pieces joined."""
    if any(token.startswith("▁") for token in tokens):  # SentencePiece marks where words start
        return "".join(tokens).replace("▁", " ").strip()
    return " ".join(tokens).replace(" ##", "")


def _spans(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Returns where each token that begins a word, or is none, begins and where its pieces end."""
    starts = [place for place, token in enumerate(tokens) if not token.startswith("##")]
    return list(zip(starts, [*starts[1:], len(tokens)], strict=True))


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
