"""Splits texts into words: parts whose ids do not depend on the others, for `word_table`.

BERT's WordPiece treats every character separately until the text is in words: a space ends a word,
and an ASCII punctuation character is a word.

SentencePiece's words end at spaces too. But `tokenizers` replaces characters by grapheme, and a
mark after a space, or a prefix before it, is in the grapheme of the space. A text with one of
these is not split, nor one with a literal "▁".
"""

import base64
import json
import operator
import re
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import tokenizers

Split = Callable[[str], list[str]]

_PUNCTUATION = r"!-/:-@\[-`{-~"
_split_at_punctuation: Split = re.compile(f"[{_PUNCTUATION}]|[^{_PUNCTUATION}]+").findall
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's, at the start of words
SPACES, LAST_SPACES = (
    " {2,}",
    rf"[ {SPACE}]+\z",
)  # what its models replace by one space, and by none
# The normalizer's last steps and the pre-tokenizer's first, as `sentencepiece_model` writes them.
_COLLAPSE: Final = [
    {"type": "Replace", "pattern": {"Regex": SPACES}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": LAST_SPACES}, "content": ""},
]
_METASPACE: Final = {
    "type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": True,
}  # fmt: skip
# Letters that share a grapheme with a neighbour (UAX #29, table 2: SpacingMark, Extend, Prepend).
_JOINING_LETTERS = "\u0e33\u0eb3\uff9e\uff9f\u0d4e"
_END_OF_BMP = 0x10000


def splits_of(encoder: tokenizers.Tokenizer) -> tuple[Split, ...]:
    """Returns how texts are split: by the first function into words, by the next into smaller ones;
    empty if the ids of words may depend on their neighbours."""
    spec = json.loads(encoder.to_str())
    if not all(token["special"] for token in spec["added_tokens"]):  # they may contain spaces
        return ()
    model, normalizer = spec["model"].get("type"), spec.get("normalizer") or {}
    pre_tokenizer = spec.get("pre_tokenizer") or {}
    kinds = (model, normalizer.get("type"), pre_tokenizer.get("type"))
    if kinds == ("WordPiece", "BertNormalizer", "BertPreTokenizer"):
        smaller = _split_lowercased if normalizer["lowercase"] else _split_at_punctuation
        return operator.methodcaller("split", " "), smaller
    if model in ("Unigram", "BPE") and kinds[1:] == ("Sequence", "Sequence"):
        replacing, collapsing = normalizer["normalizers"][:-2], normalizer["normalizers"][-2:]
        steps = pre_tokenizer["pretokenizers"]
        if (
            collapsing == _COLLAPSE
            and all(map(_writes_no_space, replacing))
            and [step["type"] for step in steps] == ["Metaspace", "Split"]
            and steps[0] == _METASPACE
            and encoder.normalizer.normalize_str("a a") == "a a"
        ):
            return (_split_unless_joined,)
    return ()


def _writes_no_space(step: dict[str, Any]) -> bool:
    """Returns whether a normalizer replaces characters by SentencePiece's rules, none by its
    space."""
    if step["type"] != "Precompiled":
        return False
    return SPACE.encode() not in base64.b64decode(step["precompiled_charsmap"])


def _split_lowercased(word: str) -> list[str]:
    return _split_at_punctuation(word.lower() if word.isascii() else word)


def _split_unless_joined(text: str) -> list[str]:
    if not text.isascii() and (SPACE in text or _joined_space().search(text)):
        return [text]
    return text.split(" ")


@cache
def _joined_space() -> re.Pattern[str]:
    """Matches a space beside a character that may be in one grapheme with it.

    Those are marks and some of the controls; unassigned characters, which other releases of Unicode
    may assign, and the planes above the first are included for simplicity.
    """
    joining = "".join(
        f"\\u{code:04x}"
        for code in range(0x80, _END_OF_BMP)
        if unicodedata.category(chr(code))[0] in "CM" or chr(code) in _JOINING_LETTERS
    )
    joining = rf"[{joining}\U00010000-\U0010ffff]"
    return re.compile(f" (?:{joining}|(?<={joining} ))")
