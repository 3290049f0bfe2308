"""`bert-jax search`: exact, from blocks on all devices; vectors in fewer bytes; hard negatives."""

import jax
import numpy as np
import pytest

from bert_jax.api import search as searching
from bert_jax.api import small_vectors
from bert_jax.api.search import top_rows
from bert_jax.errors import UserError

RANDOM = np.random.default_rng(4)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "_ROWS", 4)
    monkeypatch.setattr(searching, "_QUERIES", 2)


def expected(queries: np.ndarray, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    scores = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, rows, 1), rows


def test_the_best_rows_are_those_of_all_scores_and_of_equal_ones_the_first(small_blocks) -> None:
    """Of small whole numbers, whose scores are exact and often equal, zero included."""
    assert jax.local_device_count() > 1
    queries = RANDOM.integers(-2, 3, (5, 8)).astype(np.float32)
    vectors = RANDOM.integers(-2, 3, (201, 8)).astype(np.float32)
    seen: list[int] = []
    scores, rows = top_rows(queries, vectors, 40, done=seen.append)
    assert (scores.dtype, rows.dtype) == (np.float32, np.int64)
    own_scores, own_rows = expected(queries, vectors, 40)
    np.testing.assert_array_equal(scores, own_scores)
    np.testing.assert_array_equal(rows, own_rows)
    assert len(np.unique(own_scores)) < own_scores.size / 4
    assert len(seen) > 5
    assert seen == sorted(seen)
    assert seen[-1] == 201


def test_rows_that_are_not_allowed_are_not_found(small_blocks) -> None:
    queries, vectors = RANDOM.normal(size=(3, 8)), RANDOM.normal(size=(50, 8)).astype(np.float32)
    allowed = np.arange(50) % 7 == 2
    _, rows = top_rows(queries, vectors, 100, allowed=allowed)
    _, own = expected(queries, vectors[allowed], 100)
    np.testing.assert_array_equal(rows, np.flatnonzero(allowed)[own])  # 7 rows, fewer than asked


def test_cosines_do_not_depend_on_lengths(small_blocks) -> None:
    queries, vectors = RANDOM.normal(size=(3, 8)), RANDOM.normal(size=(50, 8))
    lengths = RANDOM.uniform(0.1, 10, (50, 1))
    scores, rows = top_rows(5 * queries, (vectors * lengths).astype(np.float16), 9, cosine=True)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, vectors)]
    own_scores, own_rows = expected(unit[0], unit[1], 9)
    np.testing.assert_array_equal(rows, own_rows)
    np.testing.assert_allclose(scores, own_scores, atol=2e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e38])
def test_a_vector_that_is_not_finite_is_named(small_blocks, bad: float) -> None:
    vectors = np.ones((50, 8), np.float32)
    vectors[33] = bad
    with pytest.raises(UserError, match=r"row 33 has a number that is NaN, infinite or too large"):
        top_rows(np.full((3, 8), 10), vectors, 4)


def test_codes_of_eight_bits_are_those_of_sentence_transformers() -> None:
    """As quantize_embeddings: the integer part of the step, counted from -128."""
    vectors = RANDOM.normal(size=(40, 6)).astype(np.float32)
    ranges = np.stack([vectors.min(0), vectors.max(0)])
    codes = small_vectors.to_int8(vectors, ranges)
    steps = (ranges[1] - ranges[0]) / 255
    np.testing.assert_array_equal(codes, ((vectors - ranges[0]) / steps - 128).astype(np.int8))
    back = np.asarray(small_vectors.decoded(jax.numpy.asarray(codes), jax.numpy.asarray(ranges)))
    assert (np.abs(back - vectors) <= steps * np.where(codes == 0, 1.001, 0.501)).all()
    alike = small_vectors.to_int8(vectors[:1], np.repeat(vectors[:1], 2, 0))  # one text
    np.testing.assert_array_equal(alike, np.full((1, 6), -128))


def test_bits_stand_for_one_and_minus_one(small_blocks) -> None:
    vectors = RANDOM.normal(size=(50, 16)).astype(np.float32)
    stored = small_vectors.to_bits(vectors)
    assert stored.shape == (50, 2)
    queries = RANDOM.normal(size=(3, 16))
    scores, rows = top_rows(queries, stored, 9)
    own_scores, own_rows = expected(queries, np.where(vectors > 0, 1, -1), 9)
    np.testing.assert_array_equal(rows, own_rows)
    np.testing.assert_allclose(scores, own_scores, atol=1e-5)
