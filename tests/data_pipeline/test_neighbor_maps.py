"""Maps of neighbours against a least-squares problem that is written out in full."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from stores import StoredDocument, make_split

from bert_jax.data_pipeline.analysis import neighbor_maps
from bert_jax.data_pipeline.analysis.cooccurrence import text_of
from bert_jax.data_pipeline.store.split import Split

IDS, WIDTH = 9, 3
RNG = np.random.default_rng(3)
DOCUMENTS = [[RNG.integers(0, IDS, n).tolist() for n in (1, 40, 7)] for _ in range(6)]


@pytest.fixture(scope="module")
def split() -> Split:
    return make_split("train", [StoredDocument(document) for document in DOCUMENTS], IDS)


@pytest.fixture(scope="module")
def words() -> np.ndarray:
    words = np.random.default_rng(1).normal(size=(IDS, WIDTH)).astype(np.float32)
    words[4] = 0  # has no vector
    return words


def maps(split, words, spread, offsets, *, rank=WIDTH, threads=2) -> tuple[np.ndarray, np.ndarray]:
    with ThreadPoolExecutor(threads) as pool:
        return neighbor_maps.neighbor_maps(
            text_of(split, IDS, 10**6), words, spread, offsets, rank, smoothing=0.75, pool=pool
        )


def plain_information(offset: int) -> np.ndarray:
    counts = np.zeros((IDS, IDS))
    for document in DOCUMENTS:
        tokens = [token for sentence in document for token in sentence]
        for i, a in enumerate(tokens):
            if 0 <= i + offset < len(tokens):
                counts[a, tokens[i + offset]] += 1
    contexts = counts.sum(axis=0) ** 0.75
    expected = counts.sum(axis=1)[:, None] * (contexts / contexts.sum())
    with np.errstate(divide="ignore"):
        return np.maximum(0, np.log(counts / expected))


@pytest.mark.parametrize("offset", [-2, -1, 1, 3])
def test_a_map_solves_its_least_squares(split, words, offset) -> None:
    spread = np.diag([0.5, 0.1, 2.0])
    tokens = [token for document in DOCUMENTS for sentence in document for token in sentence]
    weights = np.bincount(tokens, minlength=IDS) ** 0.75
    weights[4] = 0
    half = np.sqrt(weights / weights.sum())[:, None]
    ridge = 1e-3 * np.trace((half * words).T @ (half * words)) / WIDTH * np.eye(WIDTH)
    # Each row of an unknown's factor is a weighted entry, or one of what is added to it.
    left = np.concatenate([half * words, np.sqrt(ridge)])
    right = np.concatenate([half * words, np.linalg.cholesky(spread + ridge).T])
    target = np.zeros((len(left), len(right)))
    target[:IDS, :IDS] = half * plain_information(offset) * half.T
    solved, *_ = np.linalg.lstsq(np.kron(left, right), target.ravel())
    (value,), (output,) = maps(split, words, spread, [offset])
    np.testing.assert_allclose(value @ output, solved.reshape(WIDTH, WIDTH).T, atol=1e-5)


def test_the_rank_of_a_head_keeps_the_largest_part(split, words) -> None:
    spread = np.zeros((WIDTH, WIDTH))
    (value,), (output,) = maps(split, words, spread, [1])
    (low,), (out,) = maps(split, words, spread, [1], rank=2)
    left, sizes, right = np.linalg.svd(value @ output)
    np.testing.assert_allclose(low @ out, left[:, :2] * sizes[:2] @ right[:2], atol=1e-5)


def test_threads_change_no_bit(split, words) -> None:
    one, three = (maps(split, words, np.eye(WIDTH), [-1, 2], threads=n) for n in (1, 3))
    np.testing.assert_array_equal(one, three)


def test_entries_without_vectors_or_neighbours_give_no_map(words) -> None:
    alone = make_split("train", [StoredDocument([[1]]), StoredDocument([[2]])], IDS)
    for table in (words, 0 * words):
        values, outputs = maps(alone, table, np.eye(WIDTH), [1])
        assert np.isfinite([*values.ravel(), *outputs.ravel()]).all()
        assert not (values[0] @ outputs[0]).any()
