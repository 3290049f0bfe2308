"""Writes a token store, file by file or from documents in memory; see `store` for its format."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bert_jax.data_pipeline.store.digests import FileDigest, entry_of
from bert_jax.data_pipeline.store.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    TOKENIZER,
    manifest_digest,
    split_digest,
    token_type,
)
from bert_jax.data_pipeline.store.split import Split
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.store.watched_files import WatchedFiles
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.storage import atomic
from bert_jax.storage.digest import sha256


@dataclass(frozen=True)
class StoredDocument:
    """A tokenized document, the input of `write_split`."""

    sentences: Sequence[Sequence[int]]  # ids of each sentence, none empty
    source: int = 0
    language: int = 0


class ArrayWriter:
    """Writes a one-dimensional .npy file of known length in pieces, hashing it at the same time."""

    def __init__(self, path: Path, dtype: np.dtype, length: int) -> None:
        self._path, self._dtype, self._length = path, np.dtype(dtype), length
        self._digest, self._written = FileDigest(), 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("wb")
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (length,)}
        try:
            np.lib.format.write_array_header_1_0(self, header)
        except OSError:
            self._file.close()
            raise

    def write(self, data: bytes | memoryview) -> None:
        """Appends raw bytes (numpy's header writer calls this too)."""
        self._file.write(data)
        self._digest.update(data)

    def append(self, values: np.ndarray) -> None:
        """Appends elements, which must have the file's dtype."""
        if values.dtype != self._dtype:
            raise TypeError(f"{self._path}: {values.dtype} elements for a {self._dtype} file")
        self._written += len(values)
        self.write(np.ascontiguousarray(values).data.cast("B") if len(values) else b"")

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def close(self) -> dict[str, Any]:
        """Closes the file; returns its entry in the manifest."""
        self._file.close()
        if self._written != self._length:
            raise ValueError(f"{self._path}: {self._written} elements, expected {self._length}")
        return self._digest.entry()


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
    """Returns a split in memory, without a store: for tests and experiments."""
    arrays = flatten(documents, vocab_size)
    entries = {f"{name}/{a}.npy": {"sha256": sha256(v.tobytes())} for a, v in arrays.items()}
    digest = split_digest(name, entries)
    return Split(name=name, digest=digest, files=WatchedFiles(), **arrays)


def write_split(
    folder: Path, name: str, documents: Sequence[StoredDocument], vocab_size: int
) -> dict[str, dict[str, Any]]:
    """Writes `folder/name/*.npy`; returns the entries for "files" of the manifest."""
    entries = {}
    for array, values in flatten(documents, vocab_size).items():
        writer = ArrayWriter(folder / name / f"{array}.npy", values.dtype, len(values))
        writer.append(values)
        entries[f"{name}/{array}.npy"] = writer.close()
    return entries


def write_manifest(
    folder: Path,
    *,
    tokenizer: Tokenizer,
    sources: Sequence[Mapping[str, Any]],
    languages: Sequence[str],
    held_out_share: float | None,
    build_digest: str,
    files: Mapping[str, Mapping[str, Any]],
    build: Mapping[str, Any] | None = None,
) -> None:
    """Writes tokenizer.json and, last, manifest.json to a store folder."""
    atomic.write_bytes(folder / TOKENIZER, tokenizer.json)
    manifest = {
        "format_version": FORMAT_VERSION,
        "tokenizer_digest": tokenizer.digest,
        "vocab_size": tokenizer.vocab_size,
        "special": tokenizer.special._asdict(),
        "sources": list(sources),
        "languages": list(languages),
        "held_out_share": held_out_share,
        "build_digest": build_digest,
        **({"build": build} if build else {}),
        "files": {**files, TOKENIZER: entry_of(tokenizer.json)},
    }
    manifest["digest"] = manifest_digest(manifest)
    text = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False)
    atomic.write_text(folder / MANIFEST, text + "\n")


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
        **write_split(path, "train", train, size),
        **write_split(path, "held_out", held_out, size),
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
