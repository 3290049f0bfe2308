"""Builds a shard from ranges of files: cleaned, split and tokenized text in arrays."""

import gc
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bert_jax.data_pipeline.sources import Document, SourceSpec, kind_of, read_range
from bert_jax.data_pipeline.sources.document import Range
from bert_jax.data_pipeline.store.manifest import manifest_digest, token_type
from bert_jax.data_pipeline.store_build.shard_files import (
    SIGNATURES,
    SUMMARY,
    ArrayFile,
    Unit,
    part_of,
    publish,
)
from bert_jax.data_pipeline.store_build.signatures import signature
from bert_jax.data_pipeline.store_build.workers import Report
from bert_jax.data_pipeline.text import sentences
from bert_jax.data_pipeline.text.clean import clean
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.data_pipeline.tokenizer.word_table import Encode, encode_words_once
from bert_jax.errors import UserError
from bert_jax.storage.versions import changed, check_all

_BATCH_CHARACTERS = 1 << 20  # text tokenized together
_LONGEST_SENTENCE = 1 << 22  # characters; tokenizing one takes about a hundred times its memory
_ATTEMPTS = 3
T = TypeVar("T")
_COUNTS = ("documents", "characters", "dropped_documents", "dropped_sentences", "cut_documents")


class _Encoder(NamedTuple):
    """Encodes sentences as `Tokenizer.encode`; `dtype` is that of their ids in the store."""

    encode: Encode
    dtype: np.dtype


def build_shard(unit: Unit, report: Report) -> None:
    """Writes the shard of a unit; its bytes do not depend on the process or on other workers.

    Args:
        report: called with the number of raw bytes done; the calls add up to the unit's size.

    Raises:
        UserError: the text cannot be read, or is not what was hashed.
        OSError: the shard cannot be written.
    """
    part = part_of(unit)
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        with _collector_paused():
            summary = _write_unchanged(unit, part, report)
        summary["digest"] = manifest_digest(summary)
        (part / SUMMARY).write_text(json.dumps(summary), encoding="utf-8")
        publish(part, unit)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pauses Python's search for reference cycles: a shard makes none, but its search through long
    lists of words takes a quarter of the time of encoding."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _write_unchanged(unit: Unit, part: Path, report: Report) -> dict[str, Any]:
    """Writes the arrays of a unit from the text that was hashed; returns its summary.

    Where the status of a file changes meanwhile, its text is the same before and after, but may
    have been another one in between: the unit is written again.
    """
    files = check_all(unit.files)
    for _ in range(_ATTEMPTS):
        summary = _write(unit, part, report)
        now = check_all(files)
        if now == files:
            return summary
        files, report = now, lambda count: None
    raise changed(next(file for file, old in zip(now, unit.files, strict=True) if file != old).path)


def _write(unit: Unit, part: Path, report: Report) -> dict[str, Any]:
    """Writes the arrays of a unit; returns its summary."""
    encoder = _encoder(unit.tokenizer)
    counts: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    cut_files: set[str] = set()
    skipped: Counter[str] = Counter()
    reported = 0
    with ExitStack() as opened:  # closes all of them, even if closing one fails
        outputs = {name: opened.enter_context(ArrayFile(part / name)) for name in unit.arrays()}
        documents = (
            (document, name)
            for section in unit.ranges
            for name in [_name(unit, section)]
            for document in read_range(unit.source, section, skipped)
        )
        for batch in _batches(documents, lambda item: len(item[0].text)):
            for document, file in batch:
                if document.cut:
                    counts["cut_documents"] += 1
                    cut_files.add(file)
            raw = [document for document, _ in batch]
            _write_batch(raw, unit.source, encoder, outputs, counts, rules, taken)
            # Bytes of text, which exceed the file size if the file is compressed.
            size = sum(len(document.text.encode()) for document, _ in batch)
            size = min(size, unit.bytes - reported)
            report(size)
            reported += size
    report(unit.bytes - reported)
    return {
        **{name: counts[name] for name in _COUNTS},
        "rules": dict(sorted(rules.items())),
        "taken": dict(sorted(taken.items())),
        "skipped": dict(sorted(skipped.items())),
        "cut_files": sorted(cut_files),
        "unit": unit.shard.name,
        "files": {name: output.entry() for name, output in outputs.items()},
    }


def _name(unit: Unit, part: Range) -> str:
    """Returns the path of a range's file from its source's folder on."""
    is_file = part.path == unit.source.path
    return part.path.name if is_file else os.path.relpath(part.path, unit.source.path)


def raw_hash(text: str) -> int:
    """Returns the first eight bytes of a raw text's sha256, which determine its split."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _write_batch(
    documents: Sequence[Document],
    spec: SourceSpec,
    encoder: _Encoder,
    outputs: Mapping[str, ArrayFile],
    counts: Counter[str],
    rules: Counter[str],
    taken: Counter[str],
) -> None:
    split: list[list[str]] = []
    for document in documents:
        text, fired = cleaned(document, spec, taken)
        if SIGNATURES in outputs:
            outputs[SIGNATURES].append(signature(text))
        rules.update(fired)
        counts["characters"] += len(text)
        one_per_line = document.sentences_given
        split.append(text.splitlines() if one_per_line else sentences.split(text, spec.language))
    lengths = _write_tokens(chain.from_iterable(split), spec, encoder, outputs["tokens"])
    document_of = np.repeat(np.arange(len(split)), [len(sentence) for sentence in split])
    kept = np.bincount(document_of[lengths > 0], minlength=len(split)).astype(np.uint32)
    # In cleaned text one space is between two words; to split it would take a tenth of the build.
    words = np.fromiter((text.count(" ") + 1 for text in chain.from_iterable(split)), np.int64)
    words = np.bincount(document_of, words * (lengths > 0), len(split)).astype(np.uint32)
    hashes = np.array([raw_hash(document.text) for document in documents], np.uint64)
    counts["documents"] += len(documents)
    counts["dropped_documents"] += int((kept == 0).sum())
    counts["dropped_sentences"] += int((lengths == 0).sum())
    outputs["hashes"].append(hashes)
    outputs["documents"].append(kept)
    outputs["words"].append(words)
    outputs["sentences"].append(lengths[lengths > 0])


def _write_tokens(
    text: Iterable[str], spec: SourceSpec, encoder: _Encoder, output: ArrayFile
) -> np.ndarray:
    """Writes the ids of sentences, some at a time, since a single document may be huge; returns
    their lengths, [sentences] uint32."""
    lengths = [np.empty(0, np.uint32)]
    for batch in _batches(text, len):
        if longest := next((s for s in batch if len(s) > _LONGEST_SENTENCE), ""):
            raise UserError(
                f"source {spec.name!r}: a sentence of {len(longest):,} characters, at most "
                f"{_LONGEST_SENTENCE:,} ({longest[:40]!r}…); divide it, or leave its file out"
            )
        ids, of_sentences = encoder.encode(batch)
        lengths.append(of_sentences.astype(np.uint32))
        output.append(ids.astype(encoder.dtype))
    return np.concatenate(lengths)


def cleaned(
    document: Document, spec: SourceSpec, taken: Counter[str] | None = None
) -> tuple[str, Counter[str]]:
    """Returns `clean` of a document with the rules of its source kind; its counts include those of
    extracting the text. `taken`: as in `clean`."""
    text, counts = document.text, Counter[str]()
    if document.plain_text:
        text, counts = document.plain_text(text)
    text, fired = clean(
        text,
        kind_of(spec).rules,
        title=document.title,
        line_paragraphs=document.line_paragraphs,
        sentences_given=document.sentences_given,
        taken=taken,
    )
    return text, counts + fired


def _batches(texts: Iterable[T], length: Callable[[T], int]) -> Iterator[list[T]]:
    """Yields runs of texts with `_BATCH_CHARACTERS` or little more; `length`: of one of them."""
    batch: list[T] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += length(text)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


@lru_cache(maxsize=1)
def _encoder(path: Path) -> _Encoder:
    """Loads the tokenizer once per worker process, so that its units share a table of words. The
    build's own copy of it does not change."""
    tokenizer = Tokenizer.load(path)
    return _Encoder(encode_words_once(tokenizer), token_type(tokenizer.vocab_size))


def forget_words() -> None:
    """Releases the tokenizer and its table of words, after the last unit."""
    _encoder.cache_clear()
