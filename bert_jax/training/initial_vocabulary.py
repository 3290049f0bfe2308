"""The entries of a run's vocabulary in the rows of another model's: `config.init_vocabulary`.

An entry that both vocabularies have starts with the model's row. A new one starts with the mean of
the rows of the pieces that the model's tokenizer makes of its text (Gee et al. 2022, "Fast
Vocabulary Transfer for Language Model Compression", section 3), and without such pieces with the
mean of all rows, which leaves the other predictions nearly as they are (Hewitt 2021, "Initializing
New Word Embeddings for Pretrained Language Models").
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.data_pipeline.tokenizer.word_starts import SPACE_MARKS, is_byte_level
from bert_jax.data_pipeline.tokenizer.words import SPACE
from bert_jax.errors import UserError

# Text that normalizers and pre-tokenizers read in different ways: case, accents and their composed
# forms, characters for which there are others, numbers, marks, white space, other scripts.
_PROBES = (
    "café", "CAFÉ", "cafe\N{COMBINING ACUTE ACCENT}", "Straße", "½ ① ﬁn", "x² + 1,000.50",
    "don't-stop", "two  spaces", "a\ttab", "zero\N{ZERO WIDTH SPACE}width", "東京タワー", "Київ",
    "हिन्दी", "한국어",
)  # fmt: skip
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"  # decoded from a part of a character's bytes
_BYTES = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


@dataclasses.dataclass(frozen=True)
class VocabularyRows:
    """The rows of a model that the entries of a run's vocabulary start with.

    Attributes:
        source: the row of each entry, int64 [entries]; -1: the entry is new.
        pieces: id of a new entry -> the rows whose mean it takes; of none, the mean of all.
        known: rows of the model that its tokenizer has an entry for.
    """

    source: np.ndarray
    pieces: Mapping[int, Sequence[int]]
    known: int

    def take(self, table: Any) -> np.ndarray:
        """Returns the rows of all entries, [entries, ...], of a table [known or more rows, ...].

        Means are computed in float64 and rounded once.
        """
        given = np.asarray(table)[: self.known]
        rows: np.ndarray = given[np.maximum(self.source, 0)]
        for entry, pieces in self.pieces.items():
            rows[entry] = (given[list(pieces)] if pieces else given).mean(0, dtype=np.float64)
        return rows

    def line(self, init_entries: str = "pieces") -> str:
        """Returns what becomes of the entries, for the log; counts say more of new ones later."""
        entries, new = len(self.source), len(self.pieces)
        without = sum(not pieces for pieces in self.pieces.values())
        text = f"vocabulary: {entries - new:,} of {entries:,} entries copied"
        if init_entries == "cooccurrence":
            return text + (f", {new:,} are new" if new else "")
        if new:
            text += f", {new:,} are means of the model's pieces"
        return text + (f" ({without:,} have none: means of all rows)" if without else "")


def first_difference(theirs: Tokenizer, ours: Tokenizer) -> str:
    """Returns the first entry that differs between a model's vocabulary and a store's, in words; ""
    if they are the same."""
    for entry in range(max(theirs.vocab_size, ours.vocab_size)):
        there, here = (
            repr(one.token(entry)) if entry < one.vocab_size else "missing"
            for one in (theirs, ours)
        )
        if there != here:
            return (
                f"entry {entry} of the model's vocabulary is {there}, that of the store is {here}"
            )
    return ""


def read_otherwise(theirs: Tokenizer, ours: Tokenizer) -> str:
    """Returns how a store's tokenizer reads text otherwise than a model's of the same entries, in
    words, on text that normalizers treat in different ways; "" if it does not."""
    for text, there, here in zip(
        _PROBES, theirs.encode_texts(_PROBES), ours.encode_texts(_PROBES), strict=True
    ):
        if not np.array_equal(there, here):
            tokens = (" ".join(map(one.token, ids)) for one, ids in ((theirs, there), (ours, here)))
            return "the model reads {!r} as {!r}, the store as {!r}".format(text, *tokens)
    return ""


def extended(theirs: Tokenizer, ours: Tokenizer) -> VocabularyRows:
    """Returns the rows of a vocabulary that has all entries of the model's, then new ones.

    Raises:
        UserError: an entry of the model's has another id, or none.
    """
    for entry in range(theirs.vocab_size):
        there, here = theirs.token(entry), None
        if entry < ours.vocab_size and there == (here := ours.token(entry)):
            continue
        other = "missing" if here is None else repr(here)
        raise UserError(
            f"entry {entry} of the model's vocabulary is {there!r}, that of the store is {other}; "
            "for config.init_vocabulary=extend, keep all entries and add new ones after them; "
            "replace takes any vocabulary"
        )
    source = np.arange(ours.vocab_size)
    source[theirs.vocab_size :] = -1
    return _with_pieces(source, theirs, ours)


def replaced(theirs: Tokenizer, ours: Tokenizer) -> VocabularyRows:
    """Returns the rows of any other vocabulary.

    Special tokens take the row of their role. Two tokenizers of one kind share the entries of the
    same text; a WordPiece and a SentencePiece tokenizer those of the same text at the same place in
    a word ("ing" and "▁ing", "##ing" and "ing").
    """
    old, new = _Entries(theirs), _Entries(ours)
    alike = old.kind == new.kind
    rows = {old.key(i, alike): i for i in reversed(range(theirs.vocab_size))}
    for i in theirs.special:
        rows.pop(old.key(i, alike), None)
    source = np.array([rows.get(new.key(i, alike), -1) for i in range(ours.vocab_size)])
    source[list(ours.special)] = theirs.special
    return _with_pieces(source, theirs, ours)


def _with_pieces(source: np.ndarray, theirs: Tokenizer, ours: Tokenizer) -> VocabularyRows:
    added, old, new = np.flatnonzero(source < 0).tolist(), _Entries(theirs), _Entries(ours)
    pieces = old.pieces([new.surface(entry) for entry in added])
    return VocabularyRows(source, dict(zip(added, pieces, strict=True)), theirs.vocab_size)


class _Entries:
    """The entries of a tokenizer and what they stand for in a text.

    Attributes:
        prefix: of the entries inside a word, if the tokenizer is a WordPiece.
        kind: equal in tokenizers whose entries are written alike.
    """

    def __init__(self, tokenizer: Tokenizer):
        spec = json.loads(tokenizer.json)
        self._tokenizer, self._is_byte_level = tokenizer, is_byte_level(spec)
        self._ids = {tokenizer.token(i): i for i in range(tokenizer.vocab_size)}
        encoder = tokenizers.Tokenizer.from_str(tokenizer.json.decode())
        self._normalizer, self._model = encoder.normalizer, encoder.model
        self.prefix = None
        if spec["model"].get("type") == "WordPiece":
            self.prefix = spec["model"].get("continuing_subword_prefix")
        self.kind = (self.prefix, self._is_byte_level)

    def surface(self, index: int) -> tuple[bool, str]:
        """Returns whether an entry begins a word, and its text without the mark of that."""
        entry, text = self._tokenizer.token(index), self._tokenizer.decode([index])
        if self.prefix:
            return not entry.startswith(self.prefix), text.removeprefix(self.prefix)
        text = text.replace(SPACE, " ").strip()
        return entry.startswith(SPACE_MARKS) or not any(map(str.isalnum, text)), text

    def key(self, index: int, alike: bool) -> object:
        """Returns what an entry has in common with one of a tokenizer of the same or another kind.

        An entry without a text of its own, such as a part of a character, has nothing in common
        with those of another kind.
        """
        entry = self._tokenizer.token(index)
        if alike:
            return entry
        begins, text = self.surface(index)
        return (begins, text) if text and _NO_CHARACTER not in text else (self.prefix, entry)

    def pieces(self, surfaces: Sequence[tuple[bool, str]]) -> list[list[int]]:
        """Returns the ids of the pieces of each text, without [UNK].

        A text inside a word is split as one by a WordPiece, longest match first, if its entries
        suffice, and by byte-level BPE, without a space before it; SentencePiece splits it as a
        word, without the piece that only begins the word.
        """
        texts = [text.replace(_NO_CHARACTER, "") for _, text in surfaces]
        empty = {self._tokenizer.special.unk}
        if not self.prefix:
            empty |= {i for i in range(self._tokenizer.vocab_size) if not self.surface(i)[1]}
        result = []
        for (begins, text), ids in zip(surfaces, self._tokenizer.encode_batch(texts), strict=True):
            inside = None if begins else self._inside_word(text)
            result.append(inside or [i for i in ids.tolist() if i not in empty])
        return result

    def _inside_word(self, text: str) -> list[int] | None:
        """Splits a text as one inside a word; None: an entry is missing, or the tokenizer has no
        other pieces there."""
        if self._normalizer:
            text = self._normalizer.normalize_str(text)
        if self._is_byte_level:
            parts = [part for part, _ in _BYTES.pre_tokenize_str(text)]
            return [piece.id for part in parts for piece in self._model.tokenize(part)] or None
        if not self.prefix:
            return None
        pieces, start = [], 0
        while start < len(text):
            ends = range(len(text), start, -1)
            end = next((e for e in ends if self.prefix + text[start:e] in self._ids), None)
            if end is None:
                return None
            pieces.append(self._ids[self.prefix + text[start:end]])
            start = end
        return pieces
