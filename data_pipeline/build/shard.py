"""Builds a shard from ranges of files: cleaned, split and tokenized text in files of raw arrays.

Shard files, little-endian: `hashes` [documents] uint64, first eight bytes of the sha256 of the raw
text; `documents` [documents] uint32, sentences per document, 0 if no text remained; `sentences`
uint32, tokens per sentence, >= 1; `tokens`, as in the store; and summary.json, written last: the
counts, the unit's name, size and sha256 of each file, and a digest of the summary itself.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data_pipeline.build.workers import Report
from bert_jax.data_pipeline.sources import Document, SourceSpec, kind_of, read_range
from bert_jax.data_pipeline.sources.document import Range
from bert_jax.data_pipeline.storage import atomic
from bert_jax.data_pipeline.storage.digest import file_digest
from bert_jax.data_pipeline.store.digests import FileDigest
from bert_jax.data_pipeline.store.manifest import manifest_digest, token_type
from bert_jax.data_pipeline.text import sentences
from bert_jax.data_pipeline.text.clean import clean
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

_BATCH_CHARACTERS = 1 << 20  # text tokenized together
_SUMMARY = "summary.json"
PART = ".part"  # suffix of shards that are being written
_ARRAYS = ("hashes", "documents", "sentences", "tokens")
_COUNTS = ("documents", "characters", "dropped_documents", "dropped_sentences", "cut_documents")


@dataclass(frozen=True)
class Unit:
    """The ranges of one shard, consecutive in the order of their source."""

    source: SourceSpec
    ranges: tuple[Range, ...]
    bytes: int
    shard: Path  # its folder; the name is the hash of all inputs
    tokenizer: Path


@dataclass(frozen=True)
class Shard:
    """A finished shard, with memory-mapped tokens."""

    hashes: np.ndarray
    documents: np.ndarray
    sentences: np.ndarray
    tokens: np.ndarray
    summary: dict[str, Any]


class _Array:
    """A file of raw array elements, with its digest."""

    def __init__(self, path: Path) -> None:
        self._file, self._digest = path.open("wb"), FileDigest()

    def __enter__(self) -> "_Array":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def append(self, values: np.ndarray) -> None:
        data = values.tobytes()
        self._file.write(data)
        self._digest.update(data)

    def entry(self) -> dict[str, Any]:
        """Returns the size and digest of the appended data."""
        return self._digest.entry()


def build_shard(unit: Unit, report: Report) -> None:
    """Writes the shard of a unit; its bytes do not depend on the process or on other workers.

    Args:
        report: called with the number of raw bytes done; the calls add up to the unit's size.

    Raises:
        UserError: the text cannot be read.
        OSError: the shard cannot be written.
    """
    # A worker of a killed build may keep writing for a while, so each has its own folder.
    part = unit.shard.with_name(f"{unit.shard.name}.{os.getpid()}{PART}")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        summary = _write(unit, part, report)
        summary["digest"] = manifest_digest(summary)
        (part / _SUMMARY).write_text(json.dumps(summary), encoding="utf-8")
        _publish(part, unit)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(unit: Unit, folder: Path, report: Report) -> dict[str, Any]:
    """Writes the arrays of a unit; returns its summary."""
    tokenizer = _tokenizer(unit.tokenizer)
    counts: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    cut_files: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    reported = 0
    with ExitStack() as opened:  # closes all of them, even if closing one fails
        outputs = {name: opened.enter_context(_Array(folder / name)) for name in _ARRAYS}
        documents = (
            (document, part.path.name)
            for part in unit.ranges
            for document in read_range(unit.source, part, skipped)
        )
        for batch in _batches(documents):
            for document, file in batch:
                counts["cut_documents"] += document.cut
                cut_files[file] += document.cut
            _write_batch([d for d, _ in batch], unit.source, tokenizer, outputs, counts, rules)
            # Bytes of text, which exceed the file size if the file is compressed.
            size = sum(len(document.text.encode()) for document, _ in batch)
            size = min(size, unit.bytes - reported)
            report(size)
            reported += size
    report(unit.bytes - reported)
    return {
        **{name: counts[name] for name in _COUNTS},
        "rules": dict(sorted(rules.items())),
        "skipped": dict(sorted(skipped.items())),
        "cut_files": [file for file in sorted(cut_files) if cut_files[file]],
        "unit": unit.shard.name,
        "files": {name: output.entry() for name, output in outputs.items()},
    }


def _publish(part: Path, unit: Unit) -> None:
    try:
        atomic.publish(part, unit.shard)
    except OSError:
        if damage(unit):  # else a worker of a killed build has published the same shard
            raise


def damage(unit: Unit) -> str:
    """Verifies a unit's shard by reading all of it; returns what is wrong, "" if it is intact."""
    try:
        summary = json.loads((unit.shard / _SUMMARY).read_text(encoding="utf-8"))
        if summary["digest"] != manifest_digest(summary):
            return f"{_SUMMARY} was changed"
        if summary["unit"] != unit.shard.name:
            return "it was built from other text or settings"
        for name in _ARRAYS:
            if not (unit.shard / name).is_file():
                return f"{name} is missing"
            if file_digest(unit.shard / name) != summary["files"][name]["sha256"]:
                return f"the checksum of {name} does not match"
    except OSError as error:
        return f"{_SUMMARY}: {error.strerror}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{_SUMMARY} is damaged"
    return ""


def raw_hash(text: str) -> int:
    """Returns the first eight bytes of a raw text's sha256, which determine its split."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def open_shard(unit: Unit, tokens: np.dtype) -> Shard:
    """Opens the shard of a unit without verifying it; `tokens` is the dtype of its ids."""
    folder = unit.shard
    return Shard(
        hashes=np.fromfile(folder / "hashes", np.uint64),
        documents=np.fromfile(folder / "documents", np.uint32),
        sentences=np.fromfile(folder / "sentences", np.uint32),
        tokens=_mapped(folder / "tokens", tokens),
        summary=json.loads((folder / _SUMMARY).read_text(encoding="utf-8")),
    )


def _mapped(path: Path, dtype: np.dtype) -> np.ndarray:
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)


def _write_batch(
    documents: Sequence[Document],
    spec: SourceSpec,
    tokenizer: Tokenizer,
    outputs: Mapping[str, _Array],
    counts: Counter[str],
    rules: Counter[str],
) -> None:
    split: list[list[str]] = []
    for document in documents:
        text, fired = cleaned(document, spec)
        rules.update(fired)
        counts["characters"] += len(text)
        one_per_line = document.sentences_given
        split.append(text.splitlines() if one_per_line else sentences.split(text, spec.language))
    ids = tokenizer.encode_batch(list(chain.from_iterable(split)))
    lengths = np.array([len(sentence) for sentence in ids], np.uint32)
    document_of = np.repeat(np.arange(len(split)), [len(sentence) for sentence in split])
    kept = np.bincount(document_of[lengths > 0], minlength=len(split)).astype(np.uint32)
    hashes = np.array([raw_hash(document.text) for document in documents], np.uint64)
    counts["documents"] += len(documents)
    counts["dropped_documents"] += int((kept == 0).sum())
    counts["dropped_sentences"] += int((lengths == 0).sum())
    tokens = np.concatenate([*ids, np.empty(0, np.uint32)])
    outputs["hashes"].append(hashes)
    outputs["documents"].append(kept)
    outputs["sentences"].append(lengths[lengths > 0])
    outputs["tokens"].append(tokens.astype(token_type(tokenizer.vocab_size)))


def cleaned(document: Document, spec: SourceSpec) -> tuple[str, Counter[str]]:
    """Returns `clean` of a document with the rules of its source kind; its counts include those of
    extracting the text."""
    text, counts = document.text, Counter[str]()
    if document.extract:
        text, counts = document.extract(text)
    text, fired = clean(
        text,
        kind_of(spec).RULES,
        title=document.title,
        line_paragraphs=document.line_paragraphs,
        sentences_given=document.sentences_given,
    )
    return text, counts + fired


def _batches(
    documents: Iterable[tuple[Document, str]],
) -> Iterator[list[tuple[Document, str]]]:
    batch: list[tuple[Document, str]] = []
    characters = 0
    for document, file in documents:
        batch.append((document, file))
        characters += len(document.text)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


@lru_cache(maxsize=1)
def _tokenizer(path: Path) -> Tokenizer:
    """Loads the tokenizer once per worker process. The build's own copy of it does not change."""
    return Tokenizer.load(path)
