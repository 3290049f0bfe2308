"""A look at what a model has learned of words: nearest words, and two meanings of one.

Nearest words come from the table of word embeddings. Meanings come from the last hidden states of a
word in many sentences, which are grouped in two: a model that reads the context has other states
where a word means something else.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import threadpoolctl

from bert_jax.api.attention import shown_tokens
from bert_jax.api.model import Model, as_texts
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.data_pipeline.tokenizer.word_starts import BEGINS, BYTE_SPACE, is_byte_level
from bert_jax.errors import UserError, nearest_name

_FEWEST: Final = 12  # sentences with a word that is grouped
_SMALLEST: Final = 0.25  # share of them in the smaller group
_ROUNDS: Final = 20  # of moving sentences to the nearer group
_SHORTEST: Final = 3  # letters of a word
_LEAST: Final = 1e-12  # length by which a vector is divided
_STARTS: Final = f"{BYTE_SPACE}▁"  # marks of a word's first piece
_UNUSED: Final = re.compile(r"[\[<]unused_?\d+[\]>]")
_AROUND: Final = 2  # tokens on each side that make an occurrence another one


class Neighbor(NamedTuple):
    """A word, and the cosine of its embedding with that of another."""

    word: str
    cosine: float


class Meanings(NamedTuple):
    """A word, and typical sentences of both groups of its occurrences."""

    word: str
    sentences: tuple[list[str], list[str]]


def nearest_words(
    model: Model, words: Sequence[str], among: Sequence[str] | None = None, count: int = 5
) -> Mapping[str, list[Neighbor]]:
    """Returns the most similar words of each word, by the cosine of their embeddings.

    Args:
        words: each one entry of the vocabulary, see `entry_of`.
        among: entries of the vocabulary; None: all that are whole words.

    Raises:
        UserError: as `entry_of`.
    """
    tokenizer = model.tokenizer
    table = np.asarray(model.params["encoder"]["embeddings"]["word"])[: tokenizer.vocab_size]
    known = {tokenizer.token(i): i for i in range(tokenizer.vocab_size)}
    ids = word_entries(tokenizer) if among is None else np.array([known[word] for word in among])
    unit = table[ids] / np.maximum(np.linalg.norm(table[ids], axis=1, keepdims=True), _LEAST)
    found = {}
    for word in words:
        entry = entry_of(tokenizer, word, known)
        cosines = unit @ (table[entry] / max(np.linalg.norm(table[entry]), _LEAST))
        order = [i for i in np.argsort(-cosines, kind="stable")[: count + 1] if ids[i] != entry]
        names = shown_tokens(tokenizer, ids[order])
        found[word] = [
            Neighbor(name.lstrip(_STARTS) or name, float(cosines[i]))
            for name, i in zip(names, order, strict=True)
        ][:count]
    return found


def entry_of(tokenizer: Tokenizer, word: str, known: Mapping[str, int]) -> int:
    """Returns the id of a word of a text, or of an entry as the vocabulary writes it.

    known: the ids of all entries.

    Raises:
        UserError: the vocabulary has no such entry, and the line has a similar one; or the word is
            not Unicode text.
    """
    (ids,) = tokenizer.encode_batch(as_texts(word))
    if len(ids) == 1 and ids[0] != tokenizer.special.unk:
        return int(ids[0])
    if word in known:
        return known[word]
    if (several := len(word.split())) > 1:
        raise UserError(f"{word!r}: {several:,} words; give each as an argument of its own")
    pieces = " ".join(shown_tokens(tokenizer, ids))
    begin = {word[:1], word[:1].lower()}
    names = {name.lstrip(_STARTS) for name in shown_tokens(tokenizer, word_entries(tokenizer))}
    similar = [name for name in names if name[:1] in begin and abs(len(name) - len(word)) <= 2]
    near = nearest_name(word, sorted(similar))
    hint = f"did you mean {near}?" if near else "give a word that is one entry"
    raise UserError(f"{word!r}: not in the vocabulary, which writes it {pieces!r}; {hint}")


def word_entries(tokenizer: Tokenizer) -> np.ndarray:
    """Returns the ids of entries that are whole words or begin one, without special and unused
    entries and signs, int64 [words]."""
    try:
        begins = tokenizer.word_starts & BEGINS > 0
    except UserError:  # a tokenizer that does not mark them
        begins = np.ones(tokenizer.vocab_size, bool)
    if not begins[[i for i in range(len(begins)) if i not in tokenizer.special]].any():
        begins[:] = True  # one that marks where words end
    begins[list(tokenizer.special)] = False
    ids = np.flatnonzero(begins)
    shown, in_bytes = shown_tokens(tokenizer, ids), is_byte_level(json.loads(tokenizer.json))
    words = [
        any(map(str.isalnum, text))
        and not _UNUSED.fullmatch(text)
        and not (in_bytes and "\ufffd" in tokenizer.decode([i]))  # a part of a character
        for i, text in zip(ids.tolist(), shown, strict=True)
    ]
    return ids[np.array(words, bool)]


def two_meanings(model: Model, sentences: Sequence[str], shown: int = 3) -> Meanings | None:
    """Returns the word whose occurrences fall most clearly into two groups; None if none occurs
    in enough sentences. Of occurrences between the same neighbours the first counts."""
    seen = set[tuple[int, ...]]()
    states = defaultdict[str, list[np.ndarray]](list)
    places = defaultdict[str, list[int]](list)
    tokens = model.tokens(sentences)
    for number, found in enumerate(model.hidden_states(sentences)):
        ids = tokens[number].ids
        for place, entry in enumerate(ids[1:-1], 1):
            word = model.tokenizer.token(entry)
            around = tuple(ids[max(0, place - _AROUND) : place + _AROUND + 1])
            if len(word) >= _SHORTEST and word.isalpha() and around not in seen:
                seen.add(around)
                states[word].append(found[place])
                places[word].append(number)
    best, clearest = None, 0.0
    with threadpoolctl.threadpool_limits(1):  # threads of BLAS wait busily where cores are taken
        for word in sorted(states):
            if len(states[word]) >= _FEWEST:
                clear, groups = two_groups(np.stack(states[word]))
                if clear > clearest:
                    clearest = clear
                    best = word, groups
    if best is None:
        return None
    word, groups = best
    typical = ([sentences[places[word][i]] for i in group[:shown]] for group in groups)
    return Meanings(word, (next(typical), next(typical)))


def two_groups(states: np.ndarray) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    """Returns the share of the variance between two groups of states, 0 if one is too small, and
    the states of each group, the most typical first. Groups start at both ends of the first
    principal component."""
    centred = states - states.mean(axis=0)
    first = np.linalg.svd(centred, full_matrices=False)[2][0]
    second = centred @ first > 0
    for _ in range(_ROUNDS):
        if second.all() or not second.any():
            return 0.0, (np.arange(0), np.arange(0))
        means = np.stack([centred[~second].mean(axis=0), centred[second].mean(axis=0)])
        distances = ((centred[:, None] - means) ** 2).sum(axis=-1)
        second = distances[:, 1] < distances[:, 0]
    share = 1 - distances.min(axis=1).sum() / max((centred**2).sum(), np.finfo(float).tiny)
    groups = np.flatnonzero(~second), np.flatnonzero(second)
    if min(map(len, groups)) < _SMALLEST * len(states):
        share = 0.0
    one, other = (g[np.argsort(distances[g, n], kind="stable")] for n, g in enumerate(groups))
    return float(share), (one, other)
