"""Word vectors against an exact decomposition, and on real text against that of scipy."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from hypothesis import given
from hypothesis import strategies as st
from stores import StoredDocument, make_split

from bert_jax.data_pipeline.analysis import word_vectors
from bert_jax.data_pipeline.analysis.cooccurrence import (
    Cooccurrences,
    count_cooccurrences,
    text_of,
    window_weights,
)
from bert_jax.data_pipeline.analysis.word_vectors import spectral_vectors
from bert_jax.data_pipeline.sources import parse_source
from bert_jax.data_pipeline.store_build.build import build_store
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

TOPICS, PER_TOPIC = 6, 8
IDS = TOPICS * PER_TOPIC + 2  # and one that is seen twice, and one alone in its documents


@pytest.fixture(scope="module")
def found() -> Cooccurrences:
    """Documents of one topic each, whose words hardly ever meet others: a gap after six values."""
    rng, documents = np.random.default_rng(0), []
    for n in range(240):
        first = PER_TOPIC * (n % TOPICS)
        documents.append(StoredDocument([rng.integers(first, first + PER_TOPIC, 40).tolist()]))
    documents += [StoredDocument([[IDS - 2, 0, 1]])] * 2 + [StoredDocument([[IDS - 1]])] * 9
    split = make_split("train", documents, IDS)
    with ThreadPoolExecutor(2) as pool:
        return count_cooccurrences(text_of(split, IDS, 10**6), window_weights(4), pool)


def vectors(found: Cooccurrences, width: int, threads: int = 2, **settings: float) -> np.ndarray:
    settings = {"smoothing": 0.75, "exponent": 0.5} | settings
    with ThreadPoolExecutor(threads) as pool:
        return spectral_vectors(found, width, pool=pool, **settings)


def information(found: Cooccurrences, smoothing: float) -> np.ndarray:
    """Positive mutual information from its formula."""
    matrix = np.zeros((len(found.sums),) * 2)
    sums = found.sums
    contexts = np.where(sums > 0, sums**smoothing, 0)
    contexts /= contexts.sum()
    for a in range(len(sums)):
        for k in range(found.offsets[a], found.offsets[a + 1]):
            b = found.others[k]
            value = np.log(found.weights[k] / (sums[a] * contexts[b]))
            matrix[a, b] = max(value, 0)
    return matrix


@pytest.mark.parametrize(("smoothing", "exponent"), [(0.75, 0.5), (1.0, 0.0), (0.5, 1.0)])
def test_vectors_are_those_of_an_exact_decomposition(found, smoothing, exponent) -> None:
    left, values, _ = np.linalg.svd(information(found, smoothing))
    assert values[TOPICS] < 0.5 * values[TOPICS - 1]
    exact = left[:, :TOPICS] * values[:TOPICS] ** exponent
    known = found.counts >= word_vectors.RAREST
    known[IDS - 1] = False
    exact[known] /= np.linalg.norm(exact[known], axis=1, keepdims=True)
    exact[~known] = 0
    x = vectors(found, TOPICS, smoothing=smoothing, exponent=exponent)
    # A rotation, which a decomposition leaves open where values are equal, changes no product.
    np.testing.assert_allclose(x @ x.T, exact @ exact.T, atol=1e-3)


def test_rare_and_lonely_entries_have_no_vector(found) -> None:
    lengths = np.linalg.norm(vectors(found, TOPICS), axis=1)
    assert not lengths[IDS - 2 :].any()
    np.testing.assert_allclose(lengths[: IDS - 2], 1, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_no_bit(found, threads, monkeypatch) -> None:
    monkeypatch.setattr(word_vectors, "_BLOCKS", 7)
    np.testing.assert_array_equal(vectors(found, 5), vectors(found, 5, threads))


@pytest.mark.parametrize("last", [0.0, 1e-9, 1e-4, 1.0])
def test_columns_become_orthogonal_whatever_they_share(last: float) -> None:
    """The last column is another one but for noise of this size."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 6)).astype(np.float32) * [1e3, 10, 1, 1, 1, 1]
    x = np.c_[x[:, :5], x[:, 1] + last * x[:, 5]].astype(np.float32)
    with ThreadPoolExecutor(2) as pool:
        q, triangle = word_vectors._orthogonal(pool, x)
    np.testing.assert_allclose(q.T @ q, np.eye(6), atol=1e-5)
    np.testing.assert_allclose(q @ triangle, x, atol=1e-3)
    assert not np.tril(triangle, -1).any()


@given(st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=5), min_size=1, max_size=4))
def test_any_text_has_finite_vectors_of_any_width(texts) -> None:
    split = make_split("train", [StoredDocument([text]) for text in texts], 8)
    with ThreadPoolExecutor(1) as pool:
        found = count_cooccurrences(text_of(split, 8, 10**6), window_weights(2), pool)
    for width in (1, 8):
        x = vectors(found, width, 1)
        assert x.shape == (8, width)
        assert np.isfinite(x).all()


@pytest.mark.slow
def test_real_text_keeps_the_energy_of_scipys_decomposition(real_data, tmp_path) -> None:
    """The spectrum of real text is flat: a few passes find the energy, not the basis."""
    tokenizer = Tokenizer.load(real_data / "vocab/bert-base-uncased-vocab.txt")
    source = parse_source(f"dump:{real_data}/wikipedia/enwiki-pages-articles-fragment.xml.bz2")
    store = build_store([source], tokenizer, tmp_path / "store")
    with ThreadPoolExecutor(2) as pool:
        text = text_of(store.train, store.vocab_size, 10**7)
        found = count_cooccurrences(text, window_weights(4), pool)
        rows, of_transposed = word_vectors.information(found, 0.75, pool)
        _, values = word_vectors.decompose(rows, of_transposed, 128, pool)
    offsets, others, elements = rows
    matrix = scipy.sparse.csr_array((elements, others, offsets))
    exact = scipy.sparse.linalg.svds(matrix, k=128, return_singular_vectors=False)
    assert (values**2).sum() > 0.98 * (exact**2).sum()
