"""Cuts files into ranges of about 16 MB, the unit of work of a build."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from bert_jax.data_pipeline.sources.document import Range, SourceSpec
from bert_jax.data_pipeline.sources.formats import COMPRESSED
from bert_jax.storage.read_files import open_bytes, size_of

RANGE_BYTES: Final = 16 << 20  # of a file; a build joins smaller ranges into one shard

# Returns the first position from `target` on where a range that begins at `start` may end.
End = Callable[[BinaryIO, int, int], int]


def whole_file(spec: SourceSpec, path: Path) -> Iterator[Range]:
    """Yields one range: for kinds whose documents need the whole file."""
    yield Range(path, bytes=size_of(path))


def cut_file(path: Path, end: End, *, is_compressed: bool = False) -> Iterator[Range]:
    """Yields the ranges of a file, cut where `end` says; a compressed file is one range, unless
    `is_compressed`: `end` knows where compressed bytes may be cut."""
    size = size_of(path)
    if size <= RANGE_BYTES or (path.suffix.lower() in COMPRESSED and not is_compressed):
        yield Range(path, bytes=size)
        return
    with open_bytes(path, ahead=False) as stream:
        start = 0
        while start < size:
            target = start + RANGE_BYTES
            stop = end(stream, start, target) if target < size else size
            yield Range(path, start, stop, stop - start)
            start = stop


def cut_positions(path: Path, sizes: Iterable[int]) -> Iterator[Range]:
    """Yields the ranges of a file of positions, such as records; at least one, which may be empty.

    Args:
        sizes: bytes at each position.
    """
    start = stop = size = 0
    for length in sizes:
        stop, size = stop + 1, size + length
        if size >= RANGE_BYTES:
            yield Range(path, start, stop, size)
            start, size = stop, 0
    if start < stop or not stop:
        yield Range(path, start, stop, size)


def line_end(stream: BinaryIO, start: int, target: int) -> int:
    """An `End`: the end of the line that `target` is in, for kinds with one document per line."""
    stream.seek(target - 1)
    return target - 1 + len(stream.readline())
