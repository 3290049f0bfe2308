"""The table in which a TensorFlow checkpoint lists its tensors: LevelDB's format.

Blocks of sorted keys and values, each followed by its compression and a checksum; an index block
lists the others, a footer of 48 bytes finds the index. tensorflow/core/lib/io/format.h and
table_format.txt in the LevelDB repository (doc/table_format.md).
"""

from collections.abc import Iterator

import google_crc32c

from bert_jax.storage.protobuf import Reader

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48  # bytes: two handles of at most 20 bytes, padding, magic number
_TRAILER = 5  # bytes after a block: compression, masked CRC-32C


def unmasked(crc: int) -> int:
    """Returns a CRC-32C from its masked form, in which it is stored: tensorflow/core/lib/hash."""
    rotated = (crc - 0xA282EAD8) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def read_table(data: bytes) -> dict[bytes, bytes]:
    """Returns the values of a table by key, all its checksums verified.

    Raises:
        ValueError: the bytes are no table, or damaged.
    """
    if len(data) < _FOOTER or int.from_bytes(data[-8:], "little") != _MAGIC:
        raise ValueError("it does not end as the index of a TensorFlow checkpoint")
    footer = Reader(data[-_FOOTER:-8])
    metaindex, index = _handle(footer), _handle(footer)
    blocks = data[:-_FOOTER]
    list(_block(blocks, metaindex))  # for its checksum
    entries: dict[bytes, bytes] = {}
    for _, handle in _block(blocks, index):
        for key, value in _block(blocks, _handle(Reader(handle))):
            if key in entries:
                raise ValueError(f"{key!r} is listed twice")
            entries[key] = value
    return entries


def _handle(reader: Reader) -> tuple[int, int]:
    """Returns offset and size of a block."""
    return reader.varint(), reader.varint()


def _block(blocks: bytes, handle: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a block, whose keys are stored without the part that they share
    with the previous one."""
    offset, size = handle
    block = blocks[offset : offset + size]
    trailer = blocks[offset + size : offset + size + _TRAILER]
    if len(block) < size or len(trailer) < _TRAILER:
        raise ValueError("a block lies beyond the end of the file")
    if google_crc32c.value(block + trailer[:1]) != unmasked(int.from_bytes(trailer[1:], "little")):
        raise ValueError("the checksum of a block is wrong")
    if trailer[0]:
        raise ValueError("it is compressed, which TensorFlow does not do since 1.2")
    restarts = int.from_bytes(block[-4:], "little")
    if len(block) < 4 * (restarts + 1):
        raise ValueError("a block is too short")
    reader, key = Reader(block[: len(block) - 4 * (restarts + 1)]), b""
    while reader:
        shared, rest, length = reader.varint(), reader.varint(), reader.varint()
        if shared > len(key):
            raise ValueError("a key shares more than the previous one has")
        key = key[:shared] + reader.take(rest)
        yield key, reader.take(length)
