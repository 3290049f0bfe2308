"""Words hidden in held-out sentences: the same ones whenever they are drawn with the same seed."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data_pipeline.store.split import Split
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.data_pipeline.tokenizer.word_starts import BYTE_SPACE, SPACE_MARKS, space_mark

_HERE = "\N{OBJECT REPLACEMENT CHARACTER}"  # where a word was; a tokenizer's mask may be in a text
_CLOSING = frozenset([*",.;:!?)]}%\u2019\u201d\u2026"])  # no space before
_OPENING = frozenset([*"([{$#\u2018\u201c"])  # no space after
_JOINING = frozenset([*"-/_@~\u2013\u2014"])  # no space on either side
_QUOTES = frozenset([*"\"'`"])
_CONTRACTED = {"s", "t", "re", "ve", "ll", "d", "m"}  # "it ' s" → "it's"


class HiddenWord(NamedTuple):
    """A sentence with one of its words replaced by the mask token, and that word."""

    sentence: str  # its tokens, separated by spaces
    word: str
    left: str = ""  # the token before the word


class MaskedSentence(NamedTuple):
    """A sentence of a store with one of its tokens, a whole word, replaced by the mask."""

    ids: tuple[int, ...]  # without [CLS] and [SEP]
    place: int  # of the mask in them
    before: str  # the running text on the left of the word, with the space between
    word: str
    after: str


class _Draw(NamedTuple):
    """A sentence, and the word [start, end) drawn from its tokens."""

    ids: list[int]
    tokens: list[str]
    start: int
    end: int


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
    tokenizer = Tokenizer.load(store.tokenizer_path)
    hidden: list[HiddenWord] = []
    for draw in _draws(tokenizer, store.held_out, seed, range(1, longest + 1), of_pieces):
        if len(hidden) == count:
            break
        left = tokenizer.token(draw.ids[draw.start - 1]) if draw.start else ""
        sentence, word = _hidden(tokenizer, draw, tokenizer.token(store.special.mask))
        hidden.append(HiddenWord(sentence, word, left))
    return hidden


def mask_words(
    store: TokenStore, *, seed: int, count: int, shortest: int, longest: int
) -> list[MaskedSentence]:
    """Hides one word in each of `count` held-out sentences, or in all if there are fewer, drawn as
    in `hide_words`; of equal sentences one is taken.

    shortest, longest: leaves out sentences of fewer or more tokens.
    """
    tokenizer = Tokenizer.load(store.tokenizer_path)
    found: list[MaskedSentence] = []
    seen: set[tuple[int, ...]] = set()
    for draw in _draws(tokenizer, store.held_out, seed, range(shortest, longest + 1)):
        if len(found) == count:
            break
        if tuple(draw.ids) in seen:
            continue
        seen.add(tuple(draw.ids))
        before, word, after = _texts(tokenizer, draw)
        ids = list(draw.ids)
        ids[draw.start] = store.special.mask
        found.append(MaskedSentence(tuple(ids), draw.start, before, word, after))
    return found


def guess_text(tokenizer: Tokenizer, index: int) -> str:
    """Returns an entry of the vocabulary as text, without the mark of a space before it."""
    return tokenizer.decode([index]).strip() or tokenizer.token(index)


def _hidden(tokenizer: Tokenizer, draw: _Draw, mask: str) -> tuple[str, str]:
    """Returns a sentence with a mask in place of its drawn word, and the word."""
    tokens, (start, end) = draw.tokens, (draw.start, draw.end)
    if space_mark(tokens) == BYTE_SPACE:  # a character may be in several tokens
        before, word, after = _texts(tokenizer, draw)
        return f"{before}{mask}{after}", word
    return joined(_masked(tokens, start, end, mask)), joined(tokens[start:end])


def _texts(tokenizer: Tokenizer, draw: _Draw) -> tuple[str, str, str]:
    """Returns the running text before a drawn word, the word, and the text after it."""
    ids, tokens, (start, end) = draw.ids, draw.tokens, (draw.start, draw.end)
    if not space_mark(tokens):
        text = as_text(joined(_masked(tokens, start, end, _HERE)))
        before, _, after = text.partition(_HERE)
        return before, joined(tokens[start:end]), after
    before, word, after = (
        tokenizer.decode(part).strip() for part in (ids[:start], ids[start:end], ids[end:])
    )
    gaps = [" " * token.startswith(SPACE_MARKS) for token in (tokens[start], *tokens[end:], "")]
    return before + gaps[0] * bool(before), word, gaps[1] + after


def _draws(
    tokenizer: Tokenizer, split: Split, seed: int, lengths: range, of_pieces: bool = False
) -> Iterator[_Draw]:
    """Yields sentences of these lengths in a random order, each with a word drawn from it."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(split.sentence_lengths, dtype=np.int64)
    for sentence in rng.permutation(len(ends)):
        ids = split.tokens[ends[sentence] - split.sentence_lengths[sentence] : ends[sentence]]
        tokens = sentence_tokens(tokenizer, split, ends, sentence)
        space, spans = space_mark(tokens), _spans(tokens)
        length = len(spans if of_pieces else tokens)
        words = [span for span in spans if tokens[span[0]].removeprefix(space).isalnum()]
        if not of_pieces:
            words = [(start, end) for start, end in words if end - start == 1]
        if words and length in lengths:
            yield _Draw(ids.tolist(), tokens, *words[rng.integers(len(words))])


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


def sentence_tokens(
    tokenizer: Tokenizer, split: Split, ends: np.ndarray, sentence: int
) -> list[str]:
    """Returns the tokens of a sentence; ends: of the first sentences, in tokens of the split."""
    start = ends[sentence] - split.sentence_lengths[sentence]
    return [tokenizer.readable(i) for i in split.tokens[start : ends[sentence]].tolist()]


def joined(tokens: Sequence[str]) -> str:
    """Returns words separated by spaces, their pieces joined."""
    if space := space_mark(tokens):
        return "".join(tokens).replace(space, " ").strip()
    return " ".join(tokens).replace(" ##", "")


def _masked(tokens: Sequence[str], start: int, end: int, mask: str) -> list[str]:
    """Returns the tokens with a mask in place of the word [start, end)."""
    space = space_mark(tokens) if tokens[start].startswith(SPACE_MARKS) else ""
    return [*tokens[:start], f"{space}{mask}", *tokens[end:]]


def _spans(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Returns where each token that begins a word, or is none, begins and where its pieces end."""
    if space := space_mark(tokens):
        begins = [token.startswith(space) or not token.isalnum() for token in tokens]
    else:
        begins = [not token.startswith("##") for token in tokens]
    starts = [place for place, begin in enumerate(begins) if begin]
    return list(zip(starts, [*starts[1:], len(tokens)], strict=True))
