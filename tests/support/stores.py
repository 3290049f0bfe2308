"""Token stores of documents in memory, and of text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data_pipeline.sources import parse_source
from bert_jax.data_pipeline.store.manifest import split_digest, token_type
from bert_jax.data_pipeline.store.split import Split
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.store.watched_files import WatchedFiles
from bert_jax.data_pipeline.store.writer import ArrayWriter, write_manifest
from bert_jax.data_pipeline.store_build.build import build_store
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.storage.digest import sha256


@dataclass(frozen=True)
class StoredDocument:
    """A tokenized document."""

    sentences: Sequence[Sequence[int]]  # ids of each sentence, none empty
    source: int = 0
    language: int = 0


def flatten(documents: Sequence[StoredDocument], vocab_size: int) -> dict[str, np.ndarray]:
    """Returns the arrays of a split with these documents.

    Raises:
        ValueError: a document without sentences, an empty sentence, an id outside the vocabulary.
    """
    sentences = [sentence for document in documents for sentence in document.sentences]
    if not all(document.sentences for document in documents) or not all(map(len, sentences)):
        raise ValueError("a document needs at least one sentence, a sentence at least one token")
    ids = np.array([i for sentence in sentences for i in sentence], np.int64)
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise ValueError(f"ids must be in 0..{vocab_size - 1}, found {ids.min()}..{ids.max()}")
    return {
        "tokens": ids.astype(token_type(vocab_size)),
        "sentence_lengths": np.array([len(s) for s in sentences], np.uint32),
        "document_lengths": np.array([len(d.sentences) for d in documents], np.uint32),
        "document_source": np.array([d.source for d in documents], np.uint16),
        "document_language": np.array([d.language for d in documents], np.uint16),
        "token_counts": np.bincount(ids, minlength=vocab_size).astype(np.int64),
    }


def make_split(name: str, documents: Sequence[StoredDocument], vocab_size: int) -> Split:
    """Returns a split in memory, without a store."""
    arrays = flatten(documents, vocab_size)
    entries = {f"{name}/{a}.npy": {"sha256": sha256(v.tobytes())} for a, v in arrays.items()}
    digest = split_digest(name, entries)
    return Split(name=name, digest=digest, files=WatchedFiles(), **arrays)


def _write_split(
    folder: Path, name: str, documents: Sequence[StoredDocument], vocab_size: int
) -> dict[str, dict[str, Any]]:
    """Writes `folder/name/*.npy`; returns the entries for "files" of the manifest."""
    entries = {}
    for array, values in flatten(documents, vocab_size).items():
        writer = ArrayWriter(folder / name / f"{array}.npy", values.dtype, len(values))
        writer.append(values)
        entries[f"{name}/{array}.npy"] = writer.close()
    return entries


def write_store(
    path: Path,
    *,
    tokenizer: Tokenizer,
    train: Sequence[StoredDocument],
    held_out: Sequence[StoredDocument] = (),
    sources: Sequence[str] = ("text",),
    languages: Sequence[str] = ("en",),
) -> TokenStore:
    """Writes a complete store from tokenized documents that fit in memory, and opens it."""
    size = tokenizer.vocab_size
    files = {
        **_write_split(path, "train", train, size),
        **_write_split(path, "held_out", held_out, size),
    }
    write_manifest(
        path,
        tokenizer=tokenizer,
        sources=[{"name": name} for name in sources],
        languages=languages,
        held_out_share=0.0,
        build_digest="",
        files=files,
    )
    return open_store(path)


def store_of_text(source: str, tokenizer: Tokenizer, path: Path) -> TokenStore:
    """Builds a store, of which a tenth is held out, in this process. source: as typed."""
    return build_store(
        [parse_source(source)], tokenizer, path, held_out_share=0.1, workers=1, progress=False
    )
