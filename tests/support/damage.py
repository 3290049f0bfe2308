"""Damages files in the ways of disks, copies and writers that lie."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import fuzz_cases

_BLOCK = 64  # bytes of a damaged block, at most


def flip(data: bytearray, draw: random.Random) -> str:
    at, bit = draw.randrange(len(data)), draw.randrange(8)
    data[at] ^= 1 << bit
    return f"bit {bit} of byte {at} flipped"


def cut(data: bytearray, draw: random.Random) -> str:
    at = draw.randrange(len(data))
    del data[at:]
    return f"cut to {at} bytes"


def zero(data: bytearray, draw: random.Random) -> str:
    at, size = draw.randrange(len(data)), draw.randint(1, _BLOCK)
    data[at : at + size] = bytes(len(data[at : at + size]))
    return f"{size} bytes from {at} on are zero"


def repeat(data: bytearray, draw: random.Random) -> str:
    at, size = draw.randrange(len(data)), draw.randint(1, _BLOCK)
    data[at:at] = data[at : at + size]
    return f"{size} bytes from {at} on are there twice"


def lie(data: bytearray, draw: random.Random) -> str:
    """Makes numbers enormous: the digits of one in text, or four or eight bytes of any file."""
    numbers = [match.span() for match in re.finditer(rb"\d+", data)]
    if numbers and draw.random() < 0.5:
        start, stop = draw.choice(numbers)
        data[start:stop] = b"%d" % draw.choice([0, -1, 2**31, 2**63, 10**15])
        return f"the number at {start} is another"
    size, at = draw.choice([4, 8]), draw.randrange(len(data))
    data[at : at + size] = draw.choice([b"\xff", b"\x7f"]) + b"\xff" * (size - 1)
    return f"{size} bytes from {at} on are an enormous number"


def change(data: bytearray, draw: random.Random) -> str:
    """Takes away or changes a value of a JSON file."""
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not value:
        return flip(data, draw)
    data[:] = fuzz_cases.damaged(draw, value, bytes(data))
    return "another JSON value"


WAYS: tuple[Callable[[bytearray, random.Random], str], ...] = (flip, cut, zero, repeat, lie, change)


def damage(files: list[Path], draw: random.Random) -> str:
    """Damages one of some files, or exchanges two; returns what was done."""
    if len(files) > 1 and draw.random() < 0.05:
        one, other = draw.sample(files, 2)
        first, second = one.read_bytes(), other.read_bytes()
        one.write_bytes(second)
        other.write_bytes(first)
        return f"{one.name} and {other.name} exchanged"
    file = draw.choice(files)
    data = bytearray(file.read_bytes())
    if not data:
        file.write_bytes(b"\xff")
        return f"{file.name} is not empty"
    done = draw.choice(WAYS)(data, draw)
    file.write_bytes(data)
    return f"{file.name}: {done}"
