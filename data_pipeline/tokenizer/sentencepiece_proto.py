"""Parser for the protobuf of a SentencePiece `.model`.

The format is `sentencepiece_model.proto` of google/sentencepiece; its field numbers are used here.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from bert_jax.errors import UserError
from bert_jax.storage.protobuf import fields
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
        for number, value in fields(data):
            if number == 1:
                pieces.append(_piece(value))
            elif number == 2:
                trainer = value
            elif number == 3:
                normalizer = value
        training, normalizing = dict(fields(trainer)), dict(fields(normalizer))
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
    values: dict[int, Any] = dict(fields(data))
    (score,) = struct.unpack("<f", values.get(2, 0).to_bytes(4, "little"))
    return Piece(values[1].decode("utf-8"), score, Kind(values.get(3, 1)))
