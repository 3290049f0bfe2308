"""Co-occurrences against a count in plain Python, one pair of tokens at a time."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stores import StoredDocument, make_split

from bert_jax.data_pipeline.analysis import cooccurrence
from bert_jax.data_pipeline.analysis.cooccurrence import (
    Cooccurrences,
    count_cooccurrences,
    text_of,
    window_weights,
)

IDS = 9
SENTENCES = st.lists(st.lists(st.integers(0, IDS - 1), min_size=1, max_size=6), min_size=1)
DOCUMENTS = st.lists(SENTENCES.map(StoredDocument), min_size=1, max_size=5)


def counted(
    documents: list[StoredDocument], window: int, *, threads: int = 2, most: int = 10**6
) -> Cooccurrences:
    split = make_split("train", documents, IDS)
    with ThreadPoolExecutor(threads) as pool:
        return count_cooccurrences(text_of(split, IDS, most), window_weights(window), pool)


def dense(found: Cooccurrences) -> np.ndarray:
    matrix = np.zeros((IDS, IDS))
    for a in range(IDS):
        row = slice(found.offsets[a], found.offsets[a + 1])
        others = found.others[row]
        assert list(others) == sorted(set(others))
        matrix[a, others] = found.weights[row]
    return matrix


def plain(documents: list[StoredDocument], window: int) -> np.ndarray:
    matrix = np.zeros((IDS, IDS))
    for document in documents:
        tokens = [token for sentence in document.sentences for token in sentence]
        for i, a in enumerate(tokens):
            for j, b in enumerate(tokens):
                if i != j and abs(i - j) <= window:
                    matrix[a, b] += 1 / abs(i - j)
    return matrix


@given(DOCUMENTS, st.integers(1, 7))
def test_counts_are_those_of_a_plain_count(documents, window) -> None:
    found = counted(documents, window)
    expected = plain(documents, window)
    np.testing.assert_allclose(dense(found), expected, rtol=1e-6)
    np.testing.assert_allclose(found.sums, expected.sum(axis=1), rtol=1e-12)
    tokens = Counter(t for d in documents for s in d.sentences for t in s)
    assert found.counts.tolist() == [tokens[a] for a in range(IDS)]


def test_windows_cross_sentences_and_never_documents() -> None:
    one = dense(counted([StoredDocument([[1], [2]])], 3))
    two = dense(counted([StoredDocument([[1]]), StoredDocument([[2]])], 3))
    assert one[1, 2] == one[2, 1] == 1
    assert not two.any()


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_no_bit(threads, monkeypatch) -> None:
    monkeypatch.setattr(cooccurrence, "_BLOCKS", 4)
    rng = np.random.default_rng(0)
    documents = [StoredDocument([rng.integers(0, IDS, 30).tolist()]) for _ in range(20)]
    one, other = counted(documents, 4), counted(documents, 4, threads=threads)
    for name in ("offsets", "others", "weights", "sums"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_large_split_is_sampled_by_documents() -> None:
    documents = [StoredDocument([[a, a, a]]) for a in range(IDS - 1)]
    assert counted(documents, 2, most=12).counts.sum() in range(6, 13)
