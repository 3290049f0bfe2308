"""Consistency checks of a store's arrays, manifest and tokenizer, which hashes cannot detect.

Errors name the file and the first invalid element.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_jax.data_pipeline.store.digests import Progress, unwatched
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError

if TYPE_CHECKING:
    from bert_jax.data_pipeline.store.split import Split

_CHUNK = 1 << 22  # elements checked per step
_REMEDY = "build the store again"


def check_tokenizer(file: Path, manifest: Mapping[str, Any]) -> None:
    """Raises UserError unless tokenizer.json matches the manifest."""
    tokenizer = Tokenizer.load(file)
    recorded = {key: manifest[key] for key in ("tokenizer_digest", "vocab_size", "special")}
    actual = {
        "tokenizer_digest": tokenizer.digest,
        "vocab_size": tokenizer.vocab_size,
        "special": tokenizer.special._asdict(),
    }
    for key, value in actual.items():
        if value != recorded[key]:
            raise UserError(
                f"{file}: {key} is {value}, the manifest has {recorded[key]}; {_REMEDY}"
            )


def check_split(
    folder: Path, split: "Split", manifest: Mapping[str, Any], watch: Progress = unwatched
) -> None:
    """Checks all arrays of one split; reads them once.

    Raises:
        UserError: a length of 0, lengths with a wrong sum, a source or language that does not
            exist, an id outside the vocabulary, or counts that differ from the manifest or from
            `token_counts`.
    """
    tokens, sentences = len(split.tokens), len(split.sentence_lengths)
    _check_lengths(folder / "sentence_lengths.npy", split.sentence_lengths, tokens, "tokens")
    _check_lengths(folder / "document_lengths.npy", split.document_lengths, sentences, "sentences")
    documents = len(split.document_lengths)
    sources, languages = len(manifest["sources"]), len(manifest["languages"])
    _check_index(folder / "document_source.npy", split.document_source, sources, documents)
    _check_index(folder / "document_language.npy", split.document_language, languages, documents)
    _check_ids(folder, split, manifest["vocab_size"], watch)
    _check_sources(folder, split, manifest["sources"])


def _check_lengths(file: Path, lengths: np.ndarray, total: int, unit: str) -> None:
    if len(lengths) and not lengths.min():
        raise UserError(
            f"{file}: element {int(np.argmin(lengths)):,} is 0, but lengths must be >= 1; {_REMEDY}"
        )
    actual = int(lengths.sum(dtype=np.int64))
    if actual != total:
        raise UserError(
            f"{file}: lengths add up to {actual:,}, must add up to {total:,} {unit}; {_REMEDY}"
        )


def _check_index(file: Path, index: np.ndarray, count: int, documents: int) -> None:
    if len(index) != documents:
        raise UserError(
            f"{file}: has {len(index):,} elements, must have an index below {count} for each of "
            f"{documents:,} documents; {_REMEDY}"
        )
    if documents and int(index.max()) >= count:
        first = int(np.argmax(index >= count))
        raise UserError(
            f"{file}: element {first:,} is {index[first]}, must be an index below {count}; "
            f"{_REMEDY}"
        )


def _check_ids(folder: Path, split: "Split", vocab_size: int, watch: Progress) -> None:
    counted = np.zeros(vocab_size, np.int64)
    for start in range(0, len(split.tokens), _CHUNK):
        chunk = split.tokens[start : start + _CHUNK]
        if int(chunk.max()) >= vocab_size:
            at = start + int(np.argmax(chunk >= vocab_size))
            raise UserError(
                f"{folder / 'tokens.npy'}: element {at:,} ({_place(split, at)}): id "
                f"{split.tokens[at]} is outside the vocabulary of {vocab_size}; "
                "build the store again with its own tokenizer"
            )
        counted += np.bincount(chunk, minlength=vocab_size)
        watch(chunk.nbytes)
    file, recorded = folder / "token_counts.npy", split.token_counts
    if len(recorded) != vocab_size:
        raise UserError(f"{file}: has {len(recorded):,} counts, must have {vocab_size}; {_REMEDY}")
    if not np.array_equal(recorded, counted):
        first = int(np.argmax(recorded != counted))
        raise UserError(
            f"{file}: id {first} occurs {recorded[first]:,} times, but {counted[first]:,} times in "
            f"tokens.npy; {_REMEDY}"
        )


def _place(split: "Split", token: int) -> str:
    """Describes the sentence and document of a token, both counted from 0."""
    sentence = _range_of(token, split.sentence_lengths)
    return f"sentence {sentence:,}, document {_range_of(sentence, split.document_lengths):,}"


def _range_of(element: int, lengths: np.ndarray) -> int:
    """Returns the index of the consecutive range that contains an element."""
    return int(np.searchsorted(np.cumsum(lengths, dtype=np.int64), element, side="right"))


def _check_sources(folder: Path, split: "Split", sources: list[Mapping[str, Any]]) -> None:
    """Checks the number of documents per source, if the manifest has it (from `build_store`)."""
    counts = np.bincount(split.document_source, minlength=len(sources))
    for source, documents in zip(sources, counts.tolist(), strict=True):
        recorded = source.get("splits", {}).get(split.name, {}).get("documents", documents)
        if recorded != documents:
            raise UserError(
                f"{folder / 'document_source.npy'}: {documents:,} documents of source "
                f"{source['name']!r}, the manifest has {recorded:,}; {_REMEDY}"
            )
