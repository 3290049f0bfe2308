"""Finds where words begin, from the marks that a tokenizer.json has in its entries."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.data_pipeline.tokenizer.words import SPACE
from bert_jax.errors import UserError

# What an entry says, as bits: a word begins with it; a word begins after it.
BEGINS = 1
NEXT_BEGINS = 2

BYTE_SPACE = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"  # how a byte-level piece writes a space
SPACE_MARKS = (SPACE, BYTE_SPACE)  # how pieces write a space before them
# ALBERT's lists (create_pretraining_data.py, _is_start_piece_sp).
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")
_PUNCTUATION = frozenset('!"#$%&"()*+,-./:;?@[\\]^_`{|}~€£')


def find_word_starts(spec: dict[str, Any], entries: Sequence[str]) -> np.ndarray:
    """Returns what each entry of a tokenizer.json says, uint8 [entries].

    WordPiece: entries without "##" begin a word. SentencePiece: ALBERT's rule, that is, a leading
    "▁", punctuation, and every piece with a character that is neither an English letter nor
    punctuation ("we always treat them as a whole piece"): digits, accented letters, Chinese.
    Byte-level BPE: a leading space, "Ġ", as in fairseq (`is_beginning_of_word`), so that
    punctuation belongs to the word before it. BPE of characters: "</w>" ends the last piece of a
    word, so the piece after it begins one.

    Raises:
        UserError: the tokenizer.json marks words in none of these ways.
    """
    model = spec["model"]
    kind, prefix = model.get("type"), model.get("continuing_subword_prefix")
    if kind == "WordPiece" and prefix:
        marks = [BEGINS * (not entry.startswith(prefix)) for entry in entries]
    elif (space := _metaspace(spec.get("pre_tokenizer")) or replaced_space(spec)) is not None:
        marks = [BEGINS * _starts_word(entry, space) for entry in entries]
    elif end := model.get("end_of_word_suffix"):
        marks = [NEXT_BEGINS * entry.endswith(end) for entry in entries]
    elif is_byte_level(spec):
        marks = [BEGINS * entry.startswith(BYTE_SPACE) for entry in entries]
    else:
        raise UserError(
            f"this tokenizer.json ({kind}) does not mark where words begin; "
            "use masking=token, or a WordPiece, SentencePiece or byte-level BPE tokenizer, or a "
            "BPE of characters that marks where words end"
        )
    return np.array(marks, np.uint8)


def space_mark(entries: Sequence[str]) -> str:
    """Returns how some of these entries write the space before a word; "" in WordPiece, which marks
    the inside."""
    return next((mark for mark in SPACE_MARKS if any(e.startswith(mark) for e in entries)), "")


def is_byte_level(spec: dict[str, Any]) -> bool:
    """Returns whether the pre-tokenizer of a tokenizer.json writes text as bytes."""
    return any(step.get("type") == "ByteLevel" for step in _steps(spec.get("pre_tokenizer")))


def needs_space(spec: dict[str, Any]) -> bool:
    """Returns whether only after a space the first piece of a text begins a word."""
    return is_byte_level(spec) or bool(replaced_space(spec))


def replaced_space(spec: dict[str, Any]) -> str | None:
    """Returns the character that a normalizer puts in place of spaces and nowhere else, as Gemma's
    does, or None."""
    steps = (spec.get("normalizer") or {}).get("normalizers", [spec.get("normalizer") or {}])
    if any(step.get("type") == "Prepend" for step in steps):
        return None
    spaces = (step.get("content") for step in steps if step.get("pattern") == {"String": " "})
    return next(spaces, None)


def _metaspace(spec: dict[str, Any] | None) -> str | None:
    """Returns the character that replaces spaces in a Metaspace pre-tokenizer, or None."""
    return next((s.get("replacement") for s in _steps(spec) if s.get("type") == "Metaspace"), None)


def _steps(spec: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The parts of a pre-tokenizer."""
    return (spec or {}).get("pretokenizers", [spec or {}])


def _starts_word(piece: str, space: str) -> bool:
    if piece.startswith((space, "<")) or piece in _PUNCTUATION:
        return True
    return any(c.lower() not in _LETTERS and c not in _PUNCTUATION for c in piece)
