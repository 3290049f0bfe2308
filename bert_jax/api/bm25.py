"""BM25, the search by words that vectors are compared with: package bm25s, as it is by default.

Lucene's form with k1 = 1.5 and b = 0.75; words of two letters and more in lower case, without
English stop words, not stemmed.
"""

import logging
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Final

import numpy as np

from bert_jax.metrics.retrieval import NOTHING, best_rows

NOT_INSTALLED: Final = "BM25 needs bm25s, which is not installed; pip install 'bert-jax[search]'"


def is_installed() -> bool:
    """Returns whether `find` has the package that it needs."""
    return find_spec("bm25s") is not None


def find(
    queries: Sequence[str], documents: Sequence[str], k: int, done: Callable[[int], object]
) -> np.ndarray:
    """Returns the best documents of each query, the first of equal ones first: int64 [Q, k].

    A document without a word of the query is not found; the rest of its row is `NOTHING`.

    done: called with the number of queries that were searched for.
    """
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it asks for DEBUG

    def words(texts: Sequence[str]) -> list[list[str]]:
        if not texts:
            return []
        found: list[list[str]] = bm25s.tokenize(
            list(texts), stopwords="en", return_ids=False, show_progress=False
        )
        return found

    listed = words(documents)
    ranking = np.full((len(queries), k), NOTHING, np.int64)
    if not any(listed):  # bm25s cannot index them
        return ranking
    index = bm25s.BM25()
    index.index(listed, show_progress=False)
    for query, asked in enumerate(words(queries)):
        if asked:
            ranking[query] = best_rows(index.get_scores(asked), k)
        done(query + 1)
    return ranking
