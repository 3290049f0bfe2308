"""Finds documents whose text an earlier one has, in the order of the store."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np

from bert_jax.data_pipeline.store_build.documents import Documents, first_of_equal
from bert_jax.data_pipeline.store_build.shard_files import Unit

Dedup = Literal["none", "exact", "near"]
NO_DUPLICATE: Final = -1


def find_duplicates(
    how: Dedup, documents: Documents, units: Sequence[Unit], folder: Path
) -> np.ndarray:
    """Returns for each document the kept one whose text it repeats, [D] int64, else NO_DUPLICATE.

    Args:
        how: none; exact: the same raw text; near: similar text after cleaning (see
            `near_duplicates`).
        folder: for temporary files.
    """
    kept = np.full(len(documents.hashes), NO_DUPLICATE, np.int64)
    numbers = np.flatnonzero(documents.sentences)
    if how == "exact":
        kept[numbers] = numbers[first_of_equal(documents.hashes[numbers])]
    elif how == "near":
        from bert_jax.data_pipeline.store_build.near_duplicates import first_of_similar

        kept[numbers] = numbers[first_of_similar(documents, units, folder)]
    kept[kept == np.arange(len(kept))] = NO_DUPLICATE
    return kept


def count_pairs(kept: np.ndarray, source: np.ndarray, sources: int) -> np.ndarray:
    """Returns how many documents of a source repeat one of another, [sources, sources]."""
    counts = np.zeros((sources, sources), np.int64)
    left_out = kept != NO_DUPLICATE
    np.add.at(counts, (source[left_out], source[kept[left_out]]), 1)
    return counts
