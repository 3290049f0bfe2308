"""Token baselines against their definitions in plain Python, and on real text."""

from collections import Counter
from itertools import pairwise
from math import log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stores import StoredDocument, make_split, store_of_text, write_store

from bert_jax.data_pipeline.analysis.baselines import (
    bigram_loss,
    bigram_sums,
    counted_tokens,
    tokens_per_document,
    unigram_loss,
    unigram_sums,
)
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import UserError

IDS = 12
TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, *"abcdefg"])
SENTENCES = st.lists(st.lists(st.integers(5, IDS - 1), min_size=1, max_size=6), min_size=1)
DOCUMENTS = st.lists(SENTENCES.map(StoredDocument), min_size=1, max_size=6)


def plain_losses(store: TokenStore, train: list, held_out: list) -> tuple[float, float]:
    """Both losses, from the formulas, one token at a time."""
    counts = Counter(t for d in train for s in d.sentences for t in s)
    total = sum(counts.values())
    pairs = Counter(p for d in train for s in d.sentences for p in pairwise(s))
    unigram = bigram = tokens = 0
    for sentence in (s for d in held_out for s in d.sentences):
        for k, w in enumerate(sentence):
            p = q = (counts[w] + 1) / (total + store.vocab_size)
            after = {x: n for (v, x), n in pairs.items() if k and v == sentence[k - 1]}
            if after:
                q = (after.get(w, 0) + len(after) * p) / (sum(after.values()) + len(after))
            unigram, bigram, tokens = unigram - log(p), bigram - log(q), tokens + 1
    return unigram / tokens, bigram / tokens


@given(DOCUMENTS, DOCUMENTS)
def test_losses_are_those_of_the_formulas(tmp_path_factory, train, held_out) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = write_store(folder, tokenizer=TOKENIZER, train=train, held_out=held_out)
    expected = plain_losses(store, train, held_out)
    assert (unigram_loss(store), bigram_loss(store)) == pytest.approx(expected, rel=1e-12)
    sizes = tokens_per_document(store.held_out)
    of_each = np.array([plain_losses(store, train, [document]) for document in held_out])
    found = np.stack([unigram_sums(store), bigram_sums(store)], axis=1)
    np.testing.assert_allclose(found, of_each * sizes[:, None], rtol=1e-12)


def test_each_bigram_distribution_adds_up_to_one(tmp_path: Path) -> None:
    """Held-out sentences (v, w) for every w: exp(-loss of w) summed over w is 1."""
    train = [StoredDocument([[5, 6, 7, 5, 6], [7, 7]]), StoredDocument([[8, 5]])]
    for v in (5, 7, 9, IDS - 1):
        mass = 0.0
        for w in range(IDS):
            store = write_store(
                tmp_path / f"{v}-{w}",
                tokenizer=TOKENIZER,
                train=train,
                held_out=[StoredDocument([[v, w]])],
            )
            first = (store.train.token_counts[v] + 1) / (len(store.train.tokens) + IDS)
            mass += np.exp(-2 * bigram_loss(store)) / first
        assert mass == pytest.approx(1.0)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(0, 400))
def test_as_many_tokens_are_counted_as_the_limit_says(sizes: list[int], most: int) -> None:
    split = make_split("train", [StoredDocument([[5], [6] * n]) for n in sizes], IDS)
    tokens = tokens_per_document(split)
    assert tokens.tolist() == [n + 1 for n in sizes]
    counted = counted_tokens(split, most)
    assert counted.sum() == min(most, tokens.sum())
    assert (counted <= tokens).all()


def test_documents_come_from_everywhere() -> None:
    split = make_split("train", [StoredDocument([[5] * 10]) for _ in range(100)], IDS)
    counted = counted_tokens(split, 200)
    (chosen,) = np.nonzero(counted)
    assert counted[chosen].tolist() == [10] * 20
    assert np.diff(chosen).max() == 5


@pytest.mark.parametrize(
    ("sizes", "most", "counted"),
    [
        ([100], 20, [20]),
        ([60, 60], 20, [20, 0]),
        ([100, 1, 1, 1, 1], 50, [47, 0, 1, 1, 1]),
        ([1, 1, 1, 1, 100], 50, [0, 0, 1, 0, 49]),
        ([5, 500, 5, 5, 5, 500], 520, [0, 258, 0, 5, 0, 257]),
        ([5, 500, 5, 5, 5, 500], 600, [0, 298, 0, 5, 0, 297]),
    ],
)
def test_a_long_document_takes_no_place_from_others(sizes: list, most: int, counted: list) -> None:
    split = make_split("train", [StoredDocument([[5] * n]) for n in sizes], IDS)
    assert counted_tokens(split, most).tolist() == counted
    assert sum(counted) == most


def test_bigrams_of_a_prefix_are_those_of_a_shorter_document(tmp_path: Path) -> None:
    text, held_out = [[5, 6, 7], [6, 5, 6, 7, 8], [9, 8]], [StoredDocument([[5, 6, 7, 8, 9]])]
    store = write_store(
        tmp_path, tokenizer=TOKENIZER, train=[StoredDocument(text)], held_out=held_out
    )
    whole, cut = bigram_loss(store), bigram_loss(store, 5)
    pairs = Counter(p for s in [[5, 6, 7], [6, 5]] for p in pairwise(s))
    counts = store.train.token_counts + 1.0
    p, loss = counts / counts.sum(), 0.0
    for v, w in [(None, 5), (5, 6), (6, 7), (7, 8), (8, 9)]:
        after = {x: n for (u, x), n in pairs.items() if u == v}
        total = sum(after.values()) + len(after)
        loss -= log((after.get(w, 0) + len(after) * p[w]) / total if after else p[w])
    assert cut == pytest.approx(loss / 5, rel=1e-12)
    assert cut != whole


def test_without_held_out_text_the_reason_is_said(tmp_path: Path) -> None:
    store = write_store(tmp_path / "s", tokenizer=TOKENIZER, train=[StoredDocument([[5]])])
    for loss in (unigram_loss, bigram_loss):
        with pytest.raises(UserError, match="no held-out text"):
            loss(store)


def test_on_real_text_a_neighbour_helps(real_wiki_files, real_data, tmp_path) -> None:
    tokenizer = Tokenizer.load(real_data / "vocab" / "bert-base-uncased-vocab.txt")
    source = f"wikiextractor:{real_wiki_files[0].parent}"
    store = store_of_text(source, tokenizer, tmp_path / "store")
    unigram, bigram = unigram_loss(store), bigram_loss(store)
    entropy = store.train.token_counts / len(store.train.tokens)
    entropy = -(entropy[entropy > 0] * np.log(entropy[entropy > 0])).sum()
    assert entropy < unigram < np.log(store.vocab_size)
    assert 3.0 < bigram < unigram - 0.5
