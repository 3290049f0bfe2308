"""MinHash signatures of documents: two are equal in about as large a share of their places as the
texts have 5-word shingles in common (Broder, "On the resemblance and containment of documents").
"""

import importlib.metadata
import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from bert_jax.data_pipeline.errors import UserError

PLACES: Final = 128  # of a signature
_SEED: Final = 42
_WORDS: Final = 5  # of a shingle
# Characters whose shingles are in memory at the same time. Few, so that these small strings come
# from the same blocks again: a worker's memory is in pieces once its table of words has grown.
_CHUNK: Final = 1 << 13
_SPACE: Final = re.compile(r"\s")


def version() -> str:
    """Returns what the signatures depend on besides the text; UserError if rensa is missing."""
    try:
        return f"rensa {importlib.metadata.version('rensa')}"
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            "--dedup=near needs rensa, which is not installed; pip install 'bert-jax[dedup]'"
        ) from None


def signature(text: str) -> np.ndarray:
    """Returns the signature of a text, [PLACES] uint32; upper and lower case are the same."""
    import rensa

    minhash = rensa.RMinHash(num_perm=PLACES, seed=_SEED)
    words: list[str] = []
    is_short = True
    for chunk in _chunks(text.lower()):
        words = [*words[1 - _WORDS :], *chunk.split()]
        shingles = [*map(" ".join, zip(*(words[k:] for k in range(_WORDS)), strict=False))]
        minhash.update(shingles)
        is_short = is_short and not shingles
    if is_short:
        minhash.update([" ".join(words)])
    return np.array(minhash.digest(), np.uint32)


def _chunks(text: str) -> Iterator[str]:
    """Yields a text in pieces that end before white space."""
    start = 0
    while start < len(text):
        space = _SPACE.search(text, start + _CHUNK)
        end = space.start() if space else len(text)
        yield text[start:end]
        start = end
