"""Reads protocol buffers without their generated classes, and the varints of other formats.

The generated classes of a package require at least the protobuf version they were made with, and
JAX, TensorFlow and Orbax constrain that version, too.
"""

from collections.abc import Iterator
from typing import Any


class Reader:
    """Reads bytes from front to back, and never beyond their end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def __bool__(self) -> bool:
        return self.at < len(self.data)

    def take(self, size: int) -> bytes:
        """Returns the next `size` bytes; ValueError if there are fewer."""
        part = self.data[self.at : self.at + size]
        if len(part) < size:
            raise ValueError("a record ends too early")
        self.at += size
        return part

    def varint(self) -> int:
        """Returns an unsigned integer of at most 64 bits, 7 in each byte, the lowest first."""
        value = 0
        for place, byte in enumerate(self.data[self.at : self.at + 10]):
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                self.at += place + 1
                return value
        raise ValueError("a number ends too early, or has more than 64 bits")


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yields the fields of a message: its number, and an integer or the bytes of other types.

    Raises:
        ValueError: the bytes are no message.
    """
    reader = Reader(data)
    while reader:
        key = reader.varint()
        match key & 7:  # the wire type: varint, 64 bits, bytes, 32 bits
            case 0:
                yield key >> 3, reader.varint()
            case 1:
                yield key >> 3, int.from_bytes(reader.take(8), "little")
            case 2:
                yield key >> 3, reader.take(reader.varint())
            case 5:
                yield key >> 3, int.from_bytes(reader.take(4), "little")
            case _:
                raise ValueError("an entry is not a protocol buffer")
