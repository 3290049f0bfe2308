"""Parser for the protobuf of a SentencePiece `.model`.

The format is `sentencepiece_model.proto` of google/sentencepiece; its field numbers are used here.
The package's generated class cannot be used: it requires at least the protobuf version it was
generated with, and JAX, TensorFlow and Orbax constrain that version too.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from bert_jax.errors import UserError
from bert_jax.storage.reader_errors import PROTOBUF_ERRORS


class Kind(IntEnum):
    """The type of a piece (SentencePiece.Type)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary; its id is its index."""

    text: str
    score: float
    kind: Kind


@dataclass(frozen=True)
class SentencePieceModel:
    """The parts of a `.model` that determine how text is encoded."""

    algorithm: str  # "unigram" or "bpe"
    pieces: tuple[Piece, ...]
    byte_fallback: bool  # an unknown character becomes its UTF-8 bytes, pieces such as <0xE2>
    charsmap: bytes  # the compiled character replacements of the normalizer; empty for none
    dummy_prefix: bool  # a space is prepended to the text
    collapse_spaces: bool  # spaces at both ends are removed, runs of spaces become one


def parse(data: bytes, name: str) -> SentencePieceModel:
    """Parses the bytes of a `.model`.

    Raises:
        UserError: it is not one, or has unsupported settings.
    """
    trainer, normalizer = b"", b""
    pieces: list[Piece] = []
    try:
        for number, value in _fields(data):
            if number == 1:
                pieces.append(_piece(value))
            elif number == 2:
                trainer = value
            elif number == 3:
                normalizer = value
        training, normalizing = dict(_fields(trainer)), dict(_fields(normalizer))
    except PROTOBUF_ERRORS:
        pieces = []  # not a message of this type
    if not pieces:
        raise UserError(f"{name}: not a SentencePiece model; pass the .model that spm_train wrote")
    algorithm = {1: "unigram", 2: "bpe"}.get(training.get(3, 1))
    if algorithm is None:
        raise UserError(f"{name}: a word or character model; pass a unigram or BPE model")
    for unsupported, what in (
        (training.get(24, 0), "spaces at the end of pieces (treat_whitespace_as_suffix)"),
        (not normalizing.get(5, 1), "unescaped spaces (escape_whitespaces=false)"),
        (any(piece.kind is Kind.UNUSED for piece in pieces), "pieces of type UNUSED"),
    ):
        if unsupported:
            raise UserError(f"{name}: has {what}, unsupported by tokenizers; train a model without")
    return SentencePieceModel(
        algorithm,
        tuple(pieces),
        byte_fallback=bool(training.get(35, 0)),
        charsmap=normalizing.get(2, b""),
        dummy_prefix=bool(normalizing.get(3, 1)),
        collapse_spaces=bool(normalizing.get(4, 1)),
    )


def _piece(data: bytes) -> Piece:
    values = dict(_fields(data))
    (score,) = struct.unpack("<f", values.get(2, bytes(4)))
    return Piece(values[1].decode("utf-8"), score, Kind(values.get(3, 1)))


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yields (field number, value) of a message: an integer, or the bytes of other types."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + size > len(data):
            raise ValueError(f"truncated at byte {len(data)}")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns a varint (7 bits per byte, lowest first) and the offset of its end."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
