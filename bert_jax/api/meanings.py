"""A look at what a model has learned of words: nearest words, and two meanings of one.

Nearest words come from the table of word embeddings. Meanings come from the last hidden states of a
word in many sentences, which are grouped in two: a model that reads the context has other states
where a word means something else.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_jax.api.model import Model

_FEWEST: Final = 12  # sentences with a word that is grouped
_SMALLEST: Final = 0.25  # share of them in the smaller group
_ROUNDS: Final = 20  # of moving sentences to the nearer group
_SHORTEST: Final = 3  # letters of a word
_AROUND: Final = 2  # tokens on each side that make an occurrence another one


class Meanings(NamedTuple):
    """A word, and typical sentences of both groups of its occurrences."""

    word: str
    sentences: tuple[list[str], list[str]]


def nearest_words(
    model: Model, words: Sequence[str], among: Sequence[str], count: int = 5
) -> Mapping[str, list[str]]:
    """Returns the most similar words of each word, by the cosine of their embeddings.

    Args:
        words, among: entries of the vocabulary.
    """
    table = np.asarray(model.params["encoder"]["embeddings"]["word"])
    entries = {model.tokenizer.token(i): i for i in range(model.tokenizer.vocab_size)}
    unit = table[[entries[word] for word in among]]
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    nearest = {}
    for word in words:
        order = np.argsort(-(unit @ table[entries[word]]), kind="stable")
        nearest[word] = [among[i] for i in order if among[i] != word][:count]
    return nearest


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
    for word in sorted(states):
        if len(states[word]) >= _FEWEST:
            clear, groups = _two_groups(np.stack(states[word]))
            if clear > clearest:
                clearest = clear
                best = word, groups
    if best is None:
        return None
    word, groups = best
    typical = ([sentences[places[word][i]] for i in group[:shown]] for group in groups)
    return Meanings(word, (next(typical), next(typical)))


def _two_groups(states: np.ndarray) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
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
