"""Tokenizers: load, train, encode and decode.

Every kind is converted to a tokenizer.json of the `tokenizers` library, which does all encoding;
wordpiece.py and sentencepiece_model.py describe how text is split.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers

from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.storage import atomic
from bert_jax.data_pipeline.storage.digest import sha256
from bert_jax.data_pipeline.storage.remote import storage_errors
from bert_jax.data_pipeline.tokenizer import wordpiece
from bert_jax.data_pipeline.tokenizer.byte_level_bpe import SPACE
from bert_jax.data_pipeline.tokenizer.json_file import (
    SPECIAL_TOKENS,
    SpecialIds,
    library_errors,
    special_ids,
)

__all__ = ["SPECIAL_TOKENS", "Algorithm", "SpecialIds", "Tokenizer"]

Algorithm = Literal["wordpiece", "unigram", "bpe"]
_OTHER_FORMATS = "a vocab.txt or a SentencePiece .model"
_FORMATS = f"a tokenizer.json, {_OTHER_FORMATS}"
# ALBERT's lists (create_pretraining_data.py, _is_start_piece_sp).
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")
_PUNCTUATION = frozenset('!"#$%&"()*+,-./:;?@[\\]^_`{|}~€£')


class Tokenizer:
    """A tokenizer.json with its properties; encodes text and decodes ids.

    Attributes:
        json: the bytes of tokenizer.json; the store and the exported model contain the same bytes.
        digest: sha256 of `json`.
        vocab_size: number of ids.
        special: ids of the five special tokens.
    """

    def __init__(self, data: bytes, *, name: str = "tokenizer.json") -> None:
        """Parses the bytes of a tokenizer.json.

        Raises:
            UserError: it is not one, its ids have gaps, or a special token is missing.
        """
        remedy = f"pass one written by the tokenizers library, {_OTHER_FORMATS}"
        with library_errors(f"{name}: not a tokenizer.json", remedy):
            self._encoder = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
        self._name = name
        self.json = data
        self.digest = sha256(data)
        self.vocab_size: int = self._encoder.get_vocab_size(with_added_tokens=True)
        vocab = self._encoder.get_vocab(with_added_tokens=True)
        self.special = special_ids(vocab, name)
        if max(vocab.values()) != self.vocab_size - 1:
            raise UserError(f"{name}: ids must run from 0 to {self.vocab_size - 1} without gaps")
        # "[MASK]" in a text must not become the special id. This setting is not saved, so the saved
        # file still maps "[MASK]" to the id, which fill-mask users need.
        self._encoder.encode_special_tokens = True
        self._encoder.no_truncation()
        self._encoder.no_padding()

    @classmethod
    def load(cls, path: Path | str, *, lowercase: bool | None = None) -> "Tokenizer":
        """Loads a tokenizer.json, a SentencePiece model or a vocab.txt (id = line number).

        Args:
            path: a .json file is a tokenizer.json, a .model file a SentencePiece model, which keeps
                its ids (missing special tokens are added at the end), any other a vocab.txt.
            lowercase: for a vocab.txt, whether text is lowercased and accents are stripped. None
                infers it: cased if any entry has an uppercase letter.

        Raises:
            UserError: no such file, not UTF-8, repeated entries, a missing special token,
                `lowercase` contradicts the entries, or a .model that cannot be converted.
        """
        path = Path(path)
        with storage_errors(path, "cannot read the vocabulary", f"; pass {_FORMATS}"):
            data = path.read_bytes()
        if path.suffix == ".model":
            from bert_jax.data_pipeline.tokenizer.sentencepiece_model import convert

            return cls(convert(data, str(path)), name=str(path))
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not UTF-8 at byte {error.start}; pass {_FORMATS}") from None
        if path.suffix == ".json":
            return cls(data, name=str(path))
        entries = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
        return cls.from_vocab(entries, lowercase=lowercase, name=str(path))

    @classmethod
    def from_vocab(
        cls, entries: Sequence[str], *, lowercase: bool | None = None, name: str = "vocabulary"
    ) -> "Tokenizer":
        """Returns a WordPiece tokenizer with these entries; see `wordpiece.from_entries`."""
        return cls(wordpiece.from_entries(entries, lowercase=lowercase, name=name), name=name)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int,
        *,
        model: Algorithm = "wordpiece",
        lowercase: bool = True,
    ) -> "Tokenizer":
        """Trains a vocabulary. The same texts give the same bytes in every process.

        Args:
            texts: cleaned text, any number of lines each; read once.
            vocab_size: number of entries, special tokens included. SentencePiece returns exactly
                this number, WordPiece fewer if the text does not yield more.
            model: "wordpiece", or SentencePiece's "unigram" or "bpe".
            lowercase: train on lowercased text and encode the same way. WordPiece also strips
                accents, as BERT does; SentencePiece folds case and keeps accents.

        Raises:
            UserError: no text, or vocab_size too small or too large for it.
        """
        if model == "wordpiece":
            return cls(wordpiece.train(texts, vocab_size, lowercase=lowercase))
        from bert_jax.data_pipeline.tokenizer.sentencepiece_model import convert, train_model

        trained = train_model(texts, vocab_size, model, lowercase=lowercase)
        return cls(convert(trained, "the trained model"))

    @cached_property
    def _byte_level(self) -> bool:
        return _has_step(json.loads(self.json).get("pre_tokenizer"), "ByteLevel")

    @cached_property
    def word_starts(self) -> np.ndarray:
        """Whether each id begins a word, bool [vocab_size], read-only; True for special tokens.

        WordPiece: entries without "##". SentencePiece: ALBERT's rule, that is, a leading "▁",
        punctuation, and every piece with a character that is neither an English letter nor
        punctuation ("we always treat them as a whole piece"): digits, accented letters, Chinese.
        Byte-level BPE: a leading space, "Ġ", as in fairseq (`is_beginning_of_word`), so that
        punctuation belongs to the word before it.

        Raises:
            UserError: the tokenizer.json marks words in none of these ways.
        """
        spec = json.loads(self.json)
        entries = [self.token(i) for i in range(self.vocab_size)]
        prefix, model = spec["model"].get("continuing_subword_prefix"), spec["model"].get("type")
        if model == "WordPiece" and prefix:
            starts = [not entry.startswith(prefix) for entry in entries]
        elif (space := _metaspace(spec.get("pre_tokenizer"))) is not None:
            starts = [_starts_word(entry, space) for entry in entries]
        elif self._byte_level:
            starts = [entry.startswith(SPACE) for entry in entries]
        else:
            raise UserError(
                f"this tokenizer.json ({model}) does not mark where words begin; "
                "use masking=token, or a WordPiece, SentencePiece or byte-level BPE tokenizer"
            )
        result = np.array(starts, bool)
        result[list(self.special)] = True
        result.flags.writeable = False
        return result

    def encode_batch(self, texts: Sequence[str], *, inside: bool = True) -> list[np.ndarray]:
        """Returns the ids of each sentence, uint32 [n], without special tokens; may be empty.

        inside: byte-level BPE is encoded with a space before it, as within a paragraph, so that its
            first piece begins a word; otherwise as `AutoTokenizer` does.
        """
        if self._byte_level and inside:
            texts = [f" {text}" for text in texts]
        with self._errors():
            encodings = self._encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def encode_spans(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the ids of each text, uint32 [n], and where each piece stands in the text, int32
        [n, 2]: its first character and the one after its last, without the space before it.

        The text is encoded as it is, with no space before it and without special tokens.
        """
        with self._errors():
            encodings = self._encoder.encode_batch(list(texts), add_special_tokens=False)
        return [
            (
                np.array(encoding.ids, np.uint32),
                np.array([_trimmed(text, *span) for span in encoding.offsets], np.int32).reshape(
                    -1, 2
                ),
            )
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of these ids, special tokens included."""
        with self._errors():
            return self._encoder.decode([int(i) for i in ids], skip_special_tokens=False)

    def token(self, index: int) -> str:
        """Returns the vocabulary entry of an id; IndexError if there is none."""
        entry = self._encoder.id_to_token(int(index))
        if entry is None:
            raise IndexError(f"id {index} is outside the vocabulary of {self.vocab_size}")
        return entry

    def _errors(self) -> AbstractContextManager[None]:
        what = f"{self._name}: the tokenizers library failed"
        return library_errors(what, "fix the file or use another tokenizer")

    def save(self, path: Path | str) -> None:
        """Writes `json` as a file; OSError if it cannot, and an existing file is unchanged."""
        atomic.write_bytes(path, self.json)


def _metaspace(spec: dict[str, Any] | None) -> str | None:
    """Returns the character that replaces spaces in a Metaspace pre-tokenizer, or None."""
    return next((s.get("replacement") for s in _steps(spec) if s.get("type") == "Metaspace"), None)


def _has_step(spec: dict[str, Any] | None, kind: str) -> bool:
    return any(step.get("type") == kind for step in _steps(spec))


def _steps(spec: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The parts of a pre-tokenizer."""
    return (spec or {}).get("pretokenizers", [spec or {}])


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Returns the ends of a piece without the spaces before it, which some tokenizers include."""
    while start < end - 1 and text[start].isspace():
        start += 1
    return start, end


def _starts_word(piece: str, space: str) -> bool:
    if piece.startswith((space, "<")) or piece in _PUNCTUATION:
        return True
    return any(c.lower() not in _LETTERS and c not in _PUNCTUATION for c in piece)
