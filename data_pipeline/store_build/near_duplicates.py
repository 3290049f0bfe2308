"""Finds documents that are similar to an earlier one, from the MinHash signatures of the shards.

Two documents are compared if their signatures agree in one of 16 bands of 8 places: of pairs with a
Jaccard similarity of 0.9, 0.9998 are, of those with 0.8, 0.95. They are similar if more than 0.8 of
all places agree. A document that is similar to an earlier one that is kept is left out; one that is
similar only to documents left out is kept.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from bert_jax.data_pipeline.random.numba_jit import compiled
from bert_jax.data_pipeline.store_build.documents import Documents, first_of_equal
from bert_jax.data_pipeline.store_build.shard_files import Unit, mapped, open_signatures
from bert_jax.data_pipeline.store_build.signatures import PLACES

_BANDS: Final = 16
_LEAST: Final = int(0.8 * PLACES) + 1  # places that agree in similar documents


def first_of_similar(documents: Documents, units: Sequence[Unit], folder: Path) -> np.ndarray:
    """Returns, for each of the N documents with text, the kept one that it is like, or itself.

    Memory: about 100 bytes a document, and 200 for each that agrees with another in a band; hashes
    of bands are sorted one band at a time, from temporary files.

    Args:
        folder: a new folder for temporary files; it is removed.
    """
    shutil.rmtree(folder, ignore_errors=True)  # of a merge that was killed
    folder.mkdir()
    try:
        return _first_of_similar(documents, units, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _first_of_similar(documents: Documents, units: Sequence[Unit], folder: Path) -> np.ndarray:
    # Equal signatures have the same similar documents, so only the first of them is compared.
    first = first_of_equal(_write_hashes(documents, units, folder))
    firsts = np.flatnonzero(first == np.arange(len(first)))
    compared = np.zeros(len(firsts), bool)
    for band in range(_BANDS):
        compared |= _has_equal(_read_hashes(folder, band)[firsts])
    candidates = firsts[compared]
    buckets = np.empty((_BANDS, len(candidates)), np.int32)
    for band in range(_BANDS):
        hashes = _read_hashes(folder, band)[candidates]
        buckets[band] = np.unique(hashes, return_inverse=True)[1]
    similar = np.empty(len(candidates), np.int32)
    _keep_first(_gather(documents, units, candidates, folder), buckets, _LEAST, similar)
    kept = np.arange(len(first))
    kept[candidates] = candidates[similar]
    return kept[first]


def _write_hashes(documents: Documents, units: Sequence[Unit], folder: Path) -> np.ndarray:
    """Writes a file of hashes [N] uint64 for each band; returns the hashes of whole signatures."""
    factors = np.random.default_rng(0).integers(1 << 63, size=PLACES, dtype=np.uint64) * 2 + 1
    whole = []
    files = [(folder / str(band)).open("wb") for band in range(_BANDS)]
    try:
        for signatures in _signatures(documents, units):
            # Sums of products with odd factors, modulo 2^64.
            bands = (signatures * factors).reshape(-1, _BANDS, PLACES // _BANDS).sum(2)
            for file, hashes in zip(files, bands.T, strict=True):
                file.write(hashes.tobytes())
            whole.append((bands * factors[:_BANDS]).sum(1))
    finally:
        for file in files:
            file.close()
    return np.concatenate([*whole, np.empty(0, np.uint64)])


def _read_hashes(folder: Path, band: int) -> np.ndarray:
    return np.fromfile(folder / str(band), np.uint64)


def _signatures(documents: Documents, units: Sequence[Unit]) -> Iterator[np.ndarray]:
    """Yields the signatures of the documents with text of each unit, [n, PLACES] uint32."""
    for unit, own in zip(units, documents.of_units(), strict=True):
        yield open_signatures(unit)[documents.sentences[own] > 0]


def _has_equal(values: np.ndarray) -> np.ndarray:
    """Returns for each value whether another is equal."""
    order = np.argsort(values)
    equal = np.diff(values[order]) == 0
    found = np.zeros(len(values), bool)
    found[order[1:][equal]] = True
    found[order[:-1][equal]] = True
    return found


def _gather(
    documents: Documents, units: Sequence[Unit], candidates: np.ndarray, folder: Path
) -> np.ndarray:
    """Returns the signatures of candidates in one mapped file, [M, PLACES] uint32."""
    done, position = 0, 0
    with (folder / "signatures").open("wb") as file:
        for signatures in _signatures(documents, units):
            end = int(np.searchsorted(candidates, position + len(signatures)))
            file.write(signatures[candidates[done:end] - position].tobytes())
            done, position = end, position + len(signatures)
    return np.asarray(mapped(folder / "signatures", np.dtype(np.uint32))).reshape(-1, PLACES)


@compiled
def _keep_first(signatures, buckets, least, similar):
    """Sets for each of M documents the kept one that it is similar to, or itself.

    Args:
        signatures: [M, PLACES].
        buckets: [bands, M]: documents with the same hash of a band have the same number.
        least: places that agree in similar documents.
        similar: [M], set here.
    """
    bands, count = buckets.shape
    last = np.full((bands, count), -1, np.int32)  # the last document kept in a bucket
    before = np.full((bands, count), -1, np.int32)  # the one kept before a document in its bucket
    for document in range(count):
        similar[document] = document
        for band in range(bands):
            other = last[band, buckets[band, document]]
            while other >= 0 and similar[document] == document:
                equal = 0
                for place in range(signatures.shape[1]):
                    equal += signatures[document, place] == signatures[other, place]
                if equal >= least:
                    similar[document] = other
                other = before[band, other]
        if similar[document] == document:
            for band in range(bands):
                before[band, document] = last[band, buckets[band, document]]
                last[band, buckets[band, document]] = document
