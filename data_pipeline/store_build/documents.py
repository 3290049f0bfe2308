"""The documents of all shards as arrays: what a merge decides on, without their text."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bert_jax.data_pipeline.sources import SourceSpec
from bert_jax.data_pipeline.store_build.shard_files import Unit, open_shard


@dataclass(frozen=True)
class Documents:
    """All documents of a build, D of them in U units, in the order of the store: 26 bytes each."""

    hashes: np.ndarray  # [D] uint64, of the raw text
    sentences: np.ndarray  # [D] uint32, 0 if no text remained
    tokens: np.ndarray  # [D] int64
    words: np.ndarray  # [D] uint32, between white space
    source: np.ndarray  # [D] uint16
    ends: np.ndarray  # [U] int64, documents in all units up to this one

    def of_units(self) -> list[slice]:
        """Returns the documents of each unit."""
        return [slice(start, stop) for start, stop in pairwise([0, *self.ends.tolist()])]


def read_documents(units: Sequence[Unit], sources: Sequence[SourceSpec]) -> Documents:
    """Reads the documents of shards; the memory needed is theirs and one shard's."""
    numbers = {id(spec): number for number, spec in enumerate(sources)}
    hashes, sentences, tokens, words, source = [], [], [], [], []
    for unit in units:
        shard = open_shard(unit)
        hashes.append(shard.hashes)
        sentences.append(shard.documents)
        tokens.append(_sums(shard.sentences, shard.documents))
        words.append(shard.words)
        source.append(np.full(len(shard.hashes), numbers[id(unit.source)], np.uint16))
    return Documents(
        np.concatenate(hashes),
        np.concatenate(sentences),
        np.concatenate(tokens),
        np.concatenate(words),
        np.concatenate(source),
        np.cumsum([len(each) for each in hashes]),
    )


def _sums(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the sums of consecutive runs of values, of these lengths."""
    sums, some = np.zeros(len(lengths), np.int64), lengths > 0
    if some.any():
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        sums[some] = np.add.reduceat(values, starts[some], dtype=np.int64)
    return sums


def first_of_equal(values: np.ndarray) -> np.ndarray:
    """Returns for each value the index of the first that is equal."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return first[inverse]
