"""Holds documents out: of each source those whose raw text has the smallest hashes.

Decided from hashes alone, so every machine, tokenizer and cleaning rule holds out the same text.
"""

from typing import Final

import numpy as np

from bert_jax.data_pipeline.store.manifest import SPLITS
from bert_jax.data_pipeline.store_build.documents import Documents

NOWHERE: Final = -1  # not in the store
_TRAIN, _HELD_OUT = (SPLITS.index(split) for split in ("train", "held_out"))
_FEWEST: Final = 2  # NSP takes its random second sentence from another document
# By default: this share of a source's documents, or of a small source this number of them, which is
# at most the largest share.
_SHARE: Final = 0.01
_DOCUMENTS: Final = 20
LARGEST_SHARE: Final = 0.05


def held_out_count(documents: int, share: float | None) -> int:
    """Returns the number of held-out documents of a source: the given share, at least two, at most
    half. By default (None) 1 %, at least 20 documents where these are at most 5 %."""
    if share is None:
        few = min(_DOCUMENTS, int(LARGEST_SHARE * documents))
        wanted = max(round(_SHARE * documents), few)
    else:
        wanted = round(share * documents)
    return min(max(wanted, _FEWEST), documents // 2)


def assign_splits(
    documents: Documents, kept: np.ndarray, sources: int, share: float | None
) -> np.ndarray:
    """Returns the split of each document that is kept, as its number in `SPLITS`; `NOWHERE` of
    others and of those without text.

    The held-out documents of a source are those with the smallest hashes. Duplicate texts count
    once: they share a hash and so stay in one split, in whatever sources they are. A source of
    which nothing would be left to train on keeps all its texts in training.
    """
    has_text = kept & (documents.sentences > 0)
    own, of_text = (
        [np.unique(documents.hashes[some & (documents.source == s)]) for s in range(sources)]
        for some in (kept, has_text)
    )
    smallest = [hashes[: held_out_count(len(hashes), share)] for hashes in own]
    held_out = np.unique(np.concatenate([*smallest, np.zeros(0, documents.hashes.dtype)]))
    for hashes in of_text:
        if _among(hashes, held_out).all():
            held_out = held_out[~_among(held_out, hashes)]
    split = np.full(len(documents.hashes), _TRAIN, np.int8)
    split[_among(documents.hashes, held_out)] = _HELD_OUT
    split[~has_text] = NOWHERE
    return split


def _among(values: np.ndarray, some: np.ndarray) -> np.ndarray:
    """Returns which values are among some, in ascending order; in less memory than `np.isin`."""
    if not len(some):
        return np.zeros(len(values), bool)
    return some[np.minimum(np.searchsorted(some, values), len(some) - 1)] == values
