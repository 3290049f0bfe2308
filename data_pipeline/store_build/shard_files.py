"""The files of a shard: written, verified, sent to a bucket, read.

Little-endian: `hashes` [documents] uint64, first eight bytes of the sha256 of the raw text;
`documents` [documents] uint32, sentences per document, 0 if no text remained; `words` [documents]
uint32, words between white space in these sentences; `sentences` uint32, tokens per sentence, >= 1;
`tokens`, as in the store; `signatures` [documents, 128] uint32, if near duplicates are searched
for; and summary.json, written last: the counts, the unit's name, size and
sha256 of each file, and a digest of the summary itself.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from bert_jax.data_pipeline.sources import SourceSpec
from bert_jax.data_pipeline.sources.document import Range
from bert_jax.data_pipeline.store.digests import FileDigest
from bert_jax.data_pipeline.store.manifest import manifest_digest
from bert_jax.data_pipeline.store_build.signatures import PLACES
from bert_jax.storage import atomic, json_record
from bert_jax.storage.digest import file_digest
from bert_jax.storage.host_name import host_name
from bert_jax.storage.read_files import open_bytes
from bert_jax.storage.remote import open_path, put, storage_errors
from bert_jax.storage.versions import HashedFile

SUMMARY = "summary.json"
PART = ".part"  # suffix of shards that are being written
_TOKENS_AT_ONCE = 1 << 24  # of a merge
_ARRAYS = ("hashes", "documents", "words", "sentences", "tokens")
SIGNATURES = "signatures"


@dataclass(frozen=True)
class Unit:
    """The ranges of one shard, consecutive in the order of their source."""

    source: SourceSpec
    ranges: tuple[Range, ...]
    bytes: int
    shard: Path  # its folder; the name is the hash of all inputs
    tokenizer: Path
    bucket: str = ""  # folder of a bucket, where the shard goes instead
    signatures: bool = False  # the shard has those of its documents
    files: tuple[HashedFile, ...] = ()  # of the ranges, and those that describe their dataset

    def arrays(self) -> tuple[str, ...]:
        """Returns the names of the shard's arrays."""
        return (*_ARRAYS, *([SIGNATURES] if self.signatures else []))


@dataclass(frozen=True)
class Shard:
    """The arrays of a finished shard, without its ids."""

    hashes: np.ndarray
    documents: np.ndarray
    words: np.ndarray
    sentences: np.ndarray


class ArrayFile:
    """A file of raw array elements, with its digest."""

    def __init__(self, path: Path) -> None:
        self._file, self._digest = path.open("wb"), FileDigest()

    def __enter__(self) -> "ArrayFile":
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


def part_of(unit: Unit) -> Path:
    """Returns where this process writes a shard: another machine may be writing the same one, and a
    worker of a killed build keeps writing for a while."""
    return unit.shard.with_name(f"{unit.shard.name}@{host_name()}@{os.getpid()}{PART}")


def is_left(part: Path) -> bool:
    """Returns whether a process of this machine was writing a shard and has ended."""
    match part.name.removesuffix(PART).split("@"):
        case [_, host, process] if process.isdigit():
            return host == host_name() and not _is_running(int(process))
    return True  # of an earlier version


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    return True


def publish(part: Path, unit: Unit) -> None:
    if unit.bucket:
        _send(part, unit.bucket)
        return
    try:
        atomic.publish(part, unit.shard)
    except OSError:
        if damage(unit):  # else another worker has published the same shard
            raise


def _send(part: Path, url: str) -> None:
    """Copies a shard to a bucket, its summary last."""
    for name in sorted(os.listdir(part), key=lambda name: name == SUMMARY):
        with storage_errors(url, "cannot be written"):
            put(f"{url}/{name}", (part / name).read_bytes())  # written by this process


def fetch(unit: Unit, url: str) -> None:
    """Copies a shard from a bucket, or what there is of it; it is not verified."""
    part = part_of(unit)
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for name in (*unit.arrays(), SUMMARY):
            with storage_errors(url), contextlib.suppress(FileNotFoundError):
                _copy(open_path(url) / name, part / name)
        if os.path.lexists(unit.shard):
            shutil.rmtree(unit.shard)
        publish(part, unit)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _copy(source: epath.Path, to: Path) -> None:
    with open_bytes(source) as stream, to.open("wb") as file:
        shutil.copyfileobj(stream, file)


def damage(unit: Unit) -> str:
    """Verifies a unit's shard by reading all of it; returns what is wrong, "" if it is intact."""
    try:
        summary = json_record.read_json(unit.shard / SUMMARY, {"files": {str: {"sha256": str}}})
        if summary["digest"] != manifest_digest(summary):
            return f"{SUMMARY} was changed"
        if summary["unit"] != unit.shard.name:
            return "it was built from other text or settings"
        for name in unit.arrays():
            if not (unit.shard / name).is_file():
                return f"{name} is missing"
            if file_digest(unit.shard / name) != summary["files"][name]["sha256"]:
                return f"the checksum of {name} does not match"
    except OSError as error:
        return f"{SUMMARY}: {error.strerror}"
    except (ValueError, KeyError):
        return f"{SUMMARY} is damaged"
    return ""


def open_shard(unit: Unit) -> Shard:
    """Reads the shard of a unit, without its ids, and does not verify it."""
    return Shard(
        hashes=np.fromfile(unit.shard / "hashes", np.uint64),
        documents=np.fromfile(unit.shard / "documents", np.uint32),
        words=np.fromfile(unit.shard / "words", np.uint32),
        sentences=np.fromfile(unit.shard / "sentences", np.uint32),
    )


def read_in_parts(
    unit: Unit, kind: np.dtype, sentences: np.ndarray, tokens: np.ndarray
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yields runs of documents of a unit's shard, with the tokens of each sentence, uint32, and the
    ids: a file that cannot be divided is a single shard, of any size.

    Args:
        kind: dtype of the ids.
        sentences, tokens: of each document.
    """
    ends = np.cumsum(tokens)
    start = 0
    with (
        (unit.shard / "sentences").open("rb") as lengths,
        (unit.shard / "tokens").open("rb") as ids,
    ):
        while start < len(tokens):
            most = _TOKENS_AT_ONCE + (ends[start - 1] if start else 0)
            stop = max(start + 1, int(np.searchsorted(ends, most, "right")))
            part = slice(start, stop)
            yield (
                part,
                np.fromfile(lengths, np.uint32, int(sentences[part].sum())),
                np.fromfile(ids, kind, int(tokens[part].sum())),
            )
            start = stop


def open_signatures(unit: Unit) -> np.ndarray:
    """Maps the signatures of a unit's shard, [documents, PLACES] uint32."""
    return mapped(unit.shard / SIGNATURES, np.dtype(np.uint32)).reshape(-1, PLACES)


def read_summary(unit: Unit) -> dict[str, Any]:
    """Returns the counts of a unit's shard."""
    return dict(json_record.read_json(unit.shard / SUMMARY))


def mapped(path: Path, dtype: np.dtype) -> np.ndarray:
    """Maps the numbers in a file, which may be empty: such a file cannot be mapped."""
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)
