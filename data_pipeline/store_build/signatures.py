"""MinHash signatures of documents: two are equal in about as large a share of their places as the
texts have 5-word shingles in common (Broder, "On the resemblance and containment of documents").
"""

import importlib.metadata
import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from bert_jax.errors import UserError

PLACES: Final = 128  # of a signature
_SEED: Final = 42
_WORDS: Final = 5  # of a shingle
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)  # odd, so no bit of a word's hash is lost
_SHINGLES: Final = "hashes of 5 words"  # changes when the same text gets another signature
# Characters whose shingles are in memory at the same time. Few, so that these small strings come
# from the same blocks again: a worker's memory is in pieces once its table of words has grown.
_CHUNK: Final = 1 << 13
_SPACE: Final = re.compile(r"\s")


def version() -> str:
    """Returns what the signatures depend on besides the text; UserError if rensa is missing."""
    try:
        return f"{_SHINGLES} by rensa {importlib.metadata.version('rensa')}"
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            "--dedup=near needs rensa, which is not installed; pip install 'bert-jax[dedup]'"
        ) from None


def signature(text: str) -> np.ndarray:
    """Returns the signature of a text, [PLACES] uint32; upper and lower case are the same."""
    lowest = np.full(PLACES, np.iinfo(np.uint32).max, np.uint32)
    words = np.empty(0, np.uint64)
    is_short = True
    for chunk in _chunks(text.lower()):
        words = np.concatenate([words[1 - _WORDS :], _word_hashes(chunk)])
        if len(words) >= _WORDS:
            lowest, is_short = np.minimum(lowest, _of_words(words)), False
    return _of_words(words) if is_short else lowest


def _word_hashes(text: str) -> np.ndarray:
    """Returns the hashes of the words between white space, [words] uint64."""
    import rensa

    (hashes,) = rensa.RMinHash.hash_token_sets([text.split()])
    return np.fromiter(hashes, np.uint64, len(hashes))


def _of_words(words: np.ndarray) -> np.ndarray:
    """Returns the signature of the shingles of some words, of all words where they are fewer.

    A shingle's hash is combined from those of its words: joining them to a string takes longer than
    all the rest.
    """
    import rensa

    width = min(_WORDS, len(words))
    shingles = np.zeros(len(words) - width + 1, np.uint64)
    for k in range(width):
        shingles = shingles * _FACTOR + words[k : k + len(shingles)]
    rows = np.array([0, len(shingles)], np.uint64)
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(shingles, rows, PLACES, _SEED)
    return np.array(matrix.to_rows()[0], np.uint32)


def _chunks(text: str) -> Iterator[str]:
    """Yields a text in pieces that end before white space."""
    start = 0
    while start < len(text):
        space = _SPACE.search(text, start + _CHUNK)
        end = space.start() if space else len(text)
        yield text[start:end]
        start = end
