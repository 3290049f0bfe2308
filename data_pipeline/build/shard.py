"""A unit of files -> a shard: cleaned, split and tokenized, in files of raw arrays.

Shard files, little-endian: `hashes` [documents] uint64, first eight bytes of the sha256 of the raw
text; `documents` [documents] uint32, sentences, 0 where nothing was left; `sentences` uint32,
tokens, >= 1; `tokens`, as in the store; and summary.json, written last: the counts, the unit's
name, size and sha256 of each file, and a digest of all this.
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
from bert_jax.data_pipeline.sources import Document, SourceSpec, kind_of, read
from bert_jax.data_pipeline.storage import atomic
from bert_jax.data_pipeline.store.digests import FileDigest, file_digest
from bert_jax.data_pipeline.store.manifest import manifest_digest, token_type
from bert_jax.data_pipeline.text import sentences
from bert_jax.data_pipeline.text.clean import clean
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

_BATCH_CHARACTERS = 1 << 20  # text tokenized together
_SUMMARY = "summary.json"
PART = ".part"  # ends the names of shards that are being written
_ARRAYS = ("hashes", "documents", "sentences", "tokens")
_COUNTS = ("documents", "characters", "dropped_documents", "dropped_sentences", "cut_documents")


@dataclass(frozen=True)
class Unit:
    """Files that become one shard."""

    source: SourceSpec
    files: tuple[Path, ...]
    bytes: int
    shard: Path  # its folder; the name is the hash of all it depends on
    tokenizer: Path


@dataclass(frozen=True)
class Shard:
    """A finished shard, its tokens memory-mapped."""

    hashes: np.ndarray
    documents: np.ndarray
    sentences: np.ndarray
    tokens: np.ndarray
    summary: dict[str, Any]


class _Array:
    """A file of raw elements, with its digest."""

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
        """Size and digest of what was appended."""
        return self._digest.entry()


def build_shard(unit: Unit, report: Report) -> None:
    """Write the shard of a unit; the same bytes whoever calls it, whatever else is running.

    `report` is told raw bytes as they are done, the unit's size in all.

    Raises:
        UserError: the text cannot be read.
        OSError: the shard cannot be written.
    """
    # A worker whose build was killed may still write for a while: no two share a folder.
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


def _write(unit: Unit, part: Path, report: Report) -> dict[str, Any]:
    """Write the arrays of a unit; its summary."""
    tokenizer = _tokenizer(unit.tokenizer)
    counts: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    cut_files: Counter[str] = Counter()
    reported = 0
    with ExitStack() as opened:  # closes all of them, also where closing one fails
        outputs = {name: opened.enter_context(_Array(part / name)) for name in _ARRAYS}
        documents = ((d, f.name) for f in unit.files for d in read(unit.source, f))
        for batch in _batches(documents):
            for document, file in batch:
                counts["cut_documents"] += document.cut
                cut_files[file] += document.cut
            _write_batch([d for d, _ in batch], unit.source, tokenizer, outputs, counts, rules)
            # Text bytes, which exceed the file's where it is compressed.
            size = sum(len(document.text.encode()) for document, _ in batch)
            size = min(size, unit.bytes - reported)
            report(size)
            reported += size
    report(unit.bytes - reported)
    return {
        **{name: counts[name] for name in _COUNTS},
        "rules": dict(sorted(rules.items())),
        "cut_files": [file for file in sorted(cut_files) if cut_files[file]],
        "unit": unit.shard.name,
        "files": {name: output.entry() for name, output in outputs.items()},
    }


def _publish(part: Path, unit: Unit) -> None:
    try:
        atomic.publish(part, unit.shard)
    except OSError:
        if damage(unit):  # no worker of a killed build has made the same shard meanwhile
            raise


def damage(unit: Unit) -> str:
    """What is wrong with a unit's shard, "" where it is as it was written; reads all of it."""
    try:
        summary = json.loads((unit.shard / _SUMMARY).read_text(encoding="utf-8"))
        if summary["digest"] != manifest_digest(summary):
            return f"{_SUMMARY} was changed"
        if summary["unit"] != unit.shard.name:
            return "it was made from other text or settings"
        for name in _ARRAYS:
            if not (unit.shard / name).is_file():
                return f"{name} is missing"
            if file_digest(unit.shard / name) != summary["files"][name]["sha256"]:
                return f"{name} is not as it was written"
    except OSError as error:
        return f"{_SUMMARY}: {error.strerror}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{_SUMMARY} is damaged"
    return ""


def raw_hash(text: str) -> int:
    """First eight bytes of the sha256 of a raw text: decides the split it belongs to."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def open_shard(unit: Unit, tokens: np.dtype) -> Shard:
    """The shard of a unit, known to be sound; `tokens` is the element type of its ids."""
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
        given = document.sentences_given
        split.append(text.splitlines() if given else sentences.split(text, spec.language))
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
    """`clean` with the rules of the document's kind of source."""
    return clean(
        document.text,
        kind_of(spec).RULES,
        title=document.title,
        line_paragraphs=document.line_paragraphs,
        sentences_given=document.sentences_given,
    )


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
    """One per worker process. The file is the build's own copy and does not change under it."""
    return Tokenizer.load(path)
