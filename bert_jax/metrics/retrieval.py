"""Measures of a search: nDCG, recall and reciprocal rank of the documents that each query found.

As trec_eval computes them (m_ndcg_cut.c), which BEIR calls by pytrec_eval: the gain of a document
is its grade, not 2^grade - 1, divided by log2(1 + rank); it is relevant if its grade is above 0.
On 200 random rankings with grades 0 to 3 equal to pytrec_eval-terrier 0.5.11 within 1e-15.

Q: queries, K: documents found for each, the best first.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

# Of each query: row of a relevant document -> its grade, above 0; not empty.
Relevance = Sequence[Mapping[int, float]]
NOTHING = -1  # in a ranking: no further document was found
FOUND: Final = 10  # documents of a query that are ranked


def gains(ranking: np.ndarray, relevance: Relevance) -> np.ndarray:
    """Returns the grade of each document that was found, 0 of one that is not relevant: [Q, K].

    ranking: int [Q, K], rows of documents or `NOTHING`; each row at most once for a query.
    """
    assert len(ranking) == len(relevance), (len(ranking), len(relevance))
    pairs = zip(ranking.tolist(), relevance, strict=True)
    found = [[grades.get(row, 0.0) for row in rows] for rows, grades in pairs]
    return np.array(found, np.float64).reshape(ranking.shape)


def ndcg_at(k: int, found: np.ndarray, relevance: Relevance) -> np.ndarray:
    """Returns the discounted gain of the first k documents by that of the best possible k: [Q].

    found: as `gains`.
    """
    discounts = 1 / np.log2(2 + np.arange(k))
    best = np.zeros((len(relevance), k))
    for query, grades in enumerate(relevance):
        highest = sorted(grades.values(), reverse=True)[:k]
        best[query, : len(highest)] = highest
    first = found[:, :k]
    return np.asarray(first @ discounts[: first.shape[1]] / (best @ discounts))


def recall_at(k: int, found: np.ndarray, relevance: Relevance) -> np.ndarray:
    """Returns the share of a query's relevant documents that are among the first k: [Q].

    found: as `gains`. With more than k relevant documents it cannot reach 1.
    """
    relevant = np.array([len(grades) for grades in relevance])
    return np.asarray((found[:, :k] > 0).sum(1) / relevant)


def reciprocal_rank_at(k: int, found: np.ndarray) -> np.ndarray:
    """Returns 1 / the rank of the first relevant document, 0 if none is among the first k: [Q].

    found: as `gains`. Its mean is MRR@k.
    """
    is_relevant = found[:, :k] > 0
    ranks = 1 + is_relevant.argmax(1)
    return np.where(is_relevant.any(1), 1 / ranks, 0.0)


def best_rows(scores: np.ndarray, k: int) -> np.ndarray:
    """Returns the rows of the k highest scores above 0, the first of equal ones first, then
    `NOTHING`: int64 [k].

    scores: [N] of all documents for one query; 0 of one that has none of its words.
    """
    candidates = np.flatnonzero(scores > 0)
    if len(candidates) > k:
        least = -np.partition(-scores[candidates], k - 1)[k - 1]
        candidates = candidates[scores[candidates] >= least]
    order = np.argsort(-scores[candidates], kind="stable")[:k]
    rows = np.full(k, NOTHING, np.int64)
    rows[: len(order)] = candidates[order]
    return rows


# By measure, of each query, from what `gains` returns: [Q]. The first is the most important.
MEASURES: Final[Mapping[str, Callable[[np.ndarray, Relevance], np.ndarray]]] = {
    f"nDCG@{FOUND}": lambda found, relevance: ndcg_at(FOUND, found, relevance),
    "recall@1": lambda found, relevance: recall_at(1, found, relevance),
    f"recall@{FOUND}": lambda found, relevance: recall_at(FOUND, found, relevance),
    f"MRR@{FOUND}": lambda found, relevance: reciprocal_rank_at(FOUND, found),
}
