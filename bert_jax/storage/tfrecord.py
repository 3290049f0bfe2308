"""Records of TFRecord files, in which TensorBoard keeps its events, too."""

import struct
from typing import Final

import google_crc32c

_MASK_DELTA: Final = 0xA282EAD8


def framed(data: bytes) -> bytes:
    """Returns a record: its length, uint64, and its bytes, each followed by a masked CRC-32C."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _checksum(length), data, _checksum(data)))


def _checksum(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)
