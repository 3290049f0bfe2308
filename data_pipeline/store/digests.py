"""Digests of files: one per file detects damage, one per block locates it."""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from bert_jax.errors import UserError
from bert_jax.storage.regular_file import open_regular
from bert_jax.storage.remote import storage_errors

BLOCK = 4 << 20  # bytes
_DIGITS = 16  # hexadecimal digits of a block's sha256: 64 bits; the file's digest has 256

Progress = Callable[[int], None]  # called with the number of bytes just read


def unwatched(count: int) -> None:
    """A `Progress` that does nothing."""


class FileDigest:
    """Computes digests incrementally, from chunks of any size."""

    def __init__(self) -> None:
        self._whole, self._block = hashlib.sha256(), hashlib.sha256()
        self._blocks: list[str] = []
        self._bytes = 0

    def update(self, data: bytes | memoryview) -> None:
        """Adds the next bytes of the file."""
        view = memoryview(data)
        self._whole.update(view)
        while len(view):
            part = view[: BLOCK - self._bytes % BLOCK]
            self._block.update(part)
            self._bytes += len(part)
            view = view[len(part) :]
            if self._bytes % BLOCK == 0:
                self._blocks.append(self._block.hexdigest()[:_DIGITS])
                self._block = hashlib.sha256()

    def entry(self) -> dict[str, Any]:
        """Returns the manifest entry: "bytes", "sha256", "blocks" (of BLOCK bytes each)."""
        rest = [self._block.hexdigest()[:_DIGITS]] if self._bytes % BLOCK else []
        return {
            "bytes": self._bytes,
            "sha256": self._whole.hexdigest(),
            "blocks": [*self._blocks, *rest],
        }


def entry_of(data: bytes) -> dict[str, Any]:
    """Returns the manifest entry of a file with these bytes."""
    digest = FileDigest()
    digest.update(data)
    return digest.entry()


def block_digest(block: bytes) -> str:
    """Returns the digest of a block, as stored in a manifest."""
    return hashlib.sha256(block).hexdigest()[:_DIGITS]


def check_size(file: Path, entry: Mapping[str, Any]) -> None:
    """Raises UserError if a file is missing, truncated, or has extra bytes at its end."""
    if not file.is_file():
        raise UserError(f"{file}: missing from the token store; copy it again or rebuild")
    size, expected = file.stat().st_size, entry["bytes"]
    if size != expected:
        what = "missing" if size < expected else "too many"
        raise UserError(
            f"{file}: {size:,} bytes, the manifest has {expected:,}: bytes "
            f"{min(size, expected):,} to {max(size, expected) - 1:,} are {what}; copy it again or "
            "rebuild the store"
        )


def check_contents(file: Path, entry: Mapping[str, Any], watch: Progress = unwatched) -> None:
    """Reads a file of the right size once; raises UserError naming the first changed block."""
    digest = hashlib.sha256()
    for block in _blocks(file):
        digest.update(block)
        watch(len(block))
    if digest.hexdigest() == entry["sha256"]:
        return
    digests = [block_digest(block) for block in _blocks(file)]
    pairs = enumerate(itertools.zip_longest(digests, entry["blocks"]))
    bad = [number for number, (is_now, was) in pairs if is_now != was]
    if not bad:  # an inconsistent entry
        raise UserError(f"{file}: its sha256 differs from the manifest; rebuild the store")
    first = bad[0] * BLOCK
    last = min(first + BLOCK, entry["bytes"]) - 1
    more = f" (and {len(bad) - 1} other blocks of {BLOCK:,})" if len(bad) > 1 else ""
    raise UserError(
        f"{file}: bytes {first:,} to {last:,}{more} do not match the manifest (sha256); "
        "copy it again or rebuild the store"
    )


def _blocks(file: Path) -> Iterator[bytes]:
    stream: BinaryIO
    with storage_errors(file), open_regular(file) as stream:
        while block := stream.read(BLOCK):
            yield block
