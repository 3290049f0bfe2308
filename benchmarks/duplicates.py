"""Lists what `--dedup` leaves out of a corpus, and how similar each is to the document kept.

    python benchmarks/duplicates.py --source=dump:enwiki-pages-articles.xml.bz2 --source=books:books
    python benchmarks/duplicates.py --source=lines:/data/text --dedup=exact

Builds the store in a temporary folder. Prints each document left out, the kept one that it repeats,
and the Jaccard similarity of their 5-word shingles, counted, not estimated.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import harness
import numpy as np

from bert_jax.data_pipeline.sources import SourceSpec, parse_source, read_range
from bert_jax.data_pipeline.store_build import build, merge
from bert_jax.data_pipeline.store_build.documents import Documents
from bert_jax.data_pipeline.store_build.duplicates import NO_DUPLICATE, Dedup, find_duplicates
from bert_jax.data_pipeline.store_build.shard import cleaned
from bert_jax.data_pipeline.store_build.shard_files import Unit
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer

SHINGLE = 5  # words
NAME = 60  # characters of a document's name


class Repeated(NamedTuple):
    """A document that is left out."""

    source: str
    name: str  # its title, or its first words
    kept_source: str
    kept_name: str
    similarity: float
    words: int


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--source", action="append", required=True, help="as for `data build`")
    parser.add_argument("--dedup", choices=("exact", "near"), default="near")
    options = parser.parse_args()
    with harness.errors_are_one_line():
        found = list(left_out([parse_source(text) for text in options.source], options.dedup))
    harness.record(left_out=[[one.name, one.kept_name, one.similarity] for one in found])
    print(f"{len(found):,} documents are left out")
    for one in found:
        print(
            f"{one.source}: {one.name!r} ({one.words:,} words) repeats "
            f"{one.kept_source}: {one.kept_name!r}, similarity {one.similarity:.3f}"
        )


def left_out(sources: Sequence[SourceSpec], dedup: Dedup) -> Iterator[Repeated]:
    """Yields the documents that a build leaves out, in the order of the store."""
    kept, units = find(sources, dedup)
    repeated = np.flatnonzero(kept != NO_DUPLICATE)
    wanted = {*repeated.tolist(), *kept[repeated].tolist()}
    texts = dict(read(units, wanted))
    for number in repeated.tolist():
        (source, name, text), other = texts[number], texts[int(kept[number])]
        similarity = jaccard(text, other[2])
        yield Repeated(source, name, *other[:2], similarity, len(text.split()))


def find(sources: Sequence[SourceSpec], dedup: Dedup) -> tuple[np.ndarray, Sequence[Unit]]:
    """Builds a store; returns what its merge found, see `find_duplicates`, and its units."""
    results: list[tuple[np.ndarray, Sequence[Unit]]] = []

    def recorded(
        how: Dedup, documents: Documents, units: Sequence[Unit], folder: Path
    ) -> np.ndarray:
        results.append((find_duplicates(how, documents, units, folder), units))
        return results[0][0]

    tokenizer = Tokenizer.from_vocab(SPECIAL_TOKENS)  # ids do not matter here
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(merge, "find_duplicates", recorded),
    ):
        build.build_store(
            sources, tokenizer, Path(folder) / "store", dedup=dedup, workers=1, progress=False
        )
    return results[0]


def read(units: Sequence[Unit], wanted: set[int]) -> Iterator[tuple[int, tuple[str, str, str]]]:
    """Yields the source, the name and the cleaned text of the documents with these numbers."""
    documents = (
        (unit.source, document)
        for unit in units
        for part in unit.ranges
        for document in read_range(unit.source, part)
    )
    for number, (source, document) in enumerate(documents):
        if number in wanted:
            text = cleaned(document, source)[0]
            yield number, (source.name, document.title or " ".join(text[:NAME].split()), text)


def jaccard(one: str, other: str) -> float:
    """Returns the share of shingles that two texts have in common; 1 if they have none."""
    a, b = shingles(one), shingles(other)
    return len(a & b) / len(a | b)


def shingles(text: str) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[i : i + SHINGLE]) for i in range(max(len(words) - SHINGLE + 1, 1))}


if __name__ == "__main__":
    main()
