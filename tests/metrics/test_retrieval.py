"""nDCG, recall and reciprocal rank against scikit-learn and their definitions."""

import math

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from bert_jax.metrics.retrieval import (
    NOTHING,
    best_rows,
    gains,
    ndcg_at,
    recall_at,
    reciprocal_rank_at,
)

DOCUMENTS = 12


@pytest.mark.parametrize("k", [1, 5, DOCUMENTS])
def test_measures_are_those_of_their_definitions(k):
    draw = np.random.default_rng(k)
    ranking = draw.permuted(np.tile(np.arange(DOCUMENTS), (8, 1)), axis=1)
    sizes = draw.integers(1, DOCUMENTS, 8)
    chosen = [draw.choice(DOCUMENTS, size, replace=False).tolist() for size in sizes]
    relevance = [{row: float(draw.integers(1, 5)) for row in rows} for rows in chosen]
    found = gains(ranking[:, :k], relevance)
    for query, (rows, grades) in enumerate(zip(ranking, relevance, strict=True)):
        truth = np.array([[grades.get(row, 0) for row in range(DOCUMENTS)]])
        scores = np.empty((1, DOCUMENTS))
        scores[0, rows] = -np.arange(DOCUMENTS)
        ndcg = ndcg_at(k, found, relevance)[query]
        np.testing.assert_allclose(ndcg, ndcg_score(truth, scores, k=k), rtol=1e-12)
        first = [place for place, row in enumerate(rows[:k], 1) if row in grades]
        assert recall_at(k, found, relevance)[query] == len(first) / len(grades)
        assert reciprocal_rank_at(k, found)[query] == (1 / first[0] if first else 0)


def test_a_gain_is_the_grade_and_a_ranking_may_be_short():
    """trec_eval's own form: grade / log2(1 + rank), not 2^grade - 1."""
    relevance = [{5: 3.0, 6: 1.0, 7: 2.0}]
    found = gains(np.array([[6, NOTHING, 5]]), relevance)
    best = 3 + 2 / math.log2(3) + 1 / 2
    np.testing.assert_allclose(ndcg_at(10, found, relevance), [(1 + 3 / 2) / best])
    np.testing.assert_allclose(ndcg_at(1, found, relevance), [1 / 3])
    assert recall_at(10, found, relevance) == [2 / 3]
    assert reciprocal_rank_at(10, found) == [1]


def test_best_rows_are_in_order_and_the_first_of_equal_ones():
    scores = np.array([0.0, 2.0, 1.0, 2.0, 1.0, 3.0])
    assert best_rows(scores, 4).tolist() == [5, 1, 3, 2]
    assert best_rows(scores, 7).tolist() == [5, 1, 3, 2, 4, NOTHING, NOTHING]
