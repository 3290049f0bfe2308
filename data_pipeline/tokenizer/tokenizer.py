"""A tokenizer: loaded or trained, text to ids and back.

Every kind becomes a tokenizer.json of the `tokenizers` library, which alone encodes: see
wordpiece.py and sentencepiece_model.py for how text is cut.
"""

import hashlib
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
from bert_jax.data_pipeline.tokenizer import wordpiece
from bert_jax.data_pipeline.tokenizer.json_file import (
    SPECIAL_TOKENS,
    SpecialIds,
    library_errors,
    special_ids,
)

__all__ = ["SPECIAL_TOKENS", "Algorithm", "SpecialIds", "Tokenizer"]

Algorithm = Literal["wordpiece", "unigram", "bpe"]
_OTHER_KINDS = "a vocab.txt or a SentencePiece .model"
_KINDS = f"a tokenizer.json, {_OTHER_KINDS}"
# ALBERT's lists (create_pretraining_data.py, _is_start_piece_sp).
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")
_PUNCTUATION = frozenset('!"#$%&"()*+,-./:;?@[\\]^_`{|}~€£')


class Tokenizer:
    """A tokenizer.json, what it says about itself, and text to ids.

    Attributes:
        json: the bytes of tokenizer.json; the store and the exported model carry exactly these.
        digest: their sha256.
        vocab_size: number of ids.
        special: ids of the five special tokens.
    """

    def __init__(self, data: bytes, *, name: str = "tokenizer.json") -> None:
        """Read the bytes of a tokenizer.json; `name` is for messages.

        Raises:
            UserError: not a tokenizer.json, ids with gaps, or a special token missing.
        """
        pass_what = f"pass one written by the tokenizers library, {_OTHER_KINDS}"
        with library_errors(f"{name}: not a tokenizer.json", pass_what):
            self._encoder = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
        self._name = name
        self.json = data
        self.digest = hashlib.sha256(data).hexdigest()
        self.vocab_size: int = self._encoder.get_vocab_size(with_added_tokens=True)
        vocab = self._encoder.get_vocab(with_added_tokens=True)
        self.special = special_ids(vocab, name)
        if max(vocab.values()) != self.vocab_size - 1:
            raise UserError(f"{name}: ids must run from 0 to {self.vocab_size - 1} without gaps")
        # A text that speaks of "[MASK]" must not hold the special id; this setting lives in
        # memory only, so the saved file still turns "[MASK]" into the id for whoever fills masks.
        self._encoder.encode_special_tokens = True
        self._encoder.no_truncation()
        self._encoder.no_padding()

    @classmethod
    def load(cls, path: Path | str, *, lowercase: bool | None = None) -> "Tokenizer":
        """Read a tokenizer.json, a SentencePiece model or a vocab.txt (id = line number).

        Args:
            path: the file; a name ending in .json is a tokenizer.json, one ending in .model a
                SentencePiece model, whose ids stay as they are (special tokens that it lacks are
                added at the end).
            lowercase: for a vocab.txt, whether text is lower-cased and stripped of accents.
                None asks the vocabulary: cased if any entry has a capital letter.

        Raises:
            UserError: no such file, not UTF-8, entries repeated, a special token missing,
                `lowercase` against what the entries show, or a .model that cannot be carried over.
        """
        path = Path(path)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UserError(
                f"{path}: cannot read the vocabulary ({error.strerror}); pass {_KINDS}"
            ) from None
        if path.suffix == ".model":
            from bert_jax.data_pipeline.tokenizer.sentencepiece_model import convert

            return cls(convert(data, str(path)), name=str(path))
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not UTF-8 at byte {error.start}; pass {_KINDS}") from None
        if path.suffix == ".json":
            return cls(data, name=str(path))
        entries = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
        return cls.from_vocab(entries, lowercase=lowercase, name=str(path))

    @classmethod
    def from_vocab(
        cls, entries: Sequence[str], *, lowercase: bool | None = None, name: str = "vocabulary"
    ) -> "Tokenizer":
        """A WordPiece tokenizer over these entries; see `wordpiece.from_entries`."""
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
        """Train a vocabulary. The same texts give the same bytes, in every process.

        Args:
            texts: cleaned text, any number of lines each; read once.
            vocab_size: entries wanted, specials included. SentencePiece gives exactly so many,
                WordPiece fewer where the text gives no more.
            model: "wordpiece", or SentencePiece's "unigram" or "bpe".
            lowercase: train on lower-cased text and encode the same way. WordPiece strips accents
                too, as BERT does; SentencePiece folds case and keeps them.

        Raises:
            UserError: no text, or a vocabulary too small or too large for it.
        """
        if model == "wordpiece":
            return cls(wordpiece.train(texts, vocab_size, lowercase=lowercase))
        from bert_jax.data_pipeline.tokenizer.sentencepiece_model import convert, train_model

        trained = train_model(texts, vocab_size, model, lowercase=lowercase)
        return cls(convert(trained, "the trained model"))

    @cached_property
    def word_starts(self) -> np.ndarray:
        """Which ids begin a word, bool [vocab_size], read-only; special tokens do.

        WordPiece: entries without the "##". SentencePiece: ALBERT's rule, which is a leading "▁",
        punctuation, and every piece with a character that is neither an English letter nor
        punctuation ("we always treat them as a whole piece"): digits, accented letters, Chinese.

        Raises:
            UserError: a tokenizer.json that marks words in another way.
        """
        spec = json.loads(self.json)
        entries = [self.token(i) for i in range(self.vocab_size)]
        prefix, kind = spec["model"].get("continuing_subword_prefix"), spec["model"].get("type")
        if kind == "WordPiece" and prefix:
            starts = [not entry.startswith(prefix) for entry in entries]
        elif (space := _metaspace(spec.get("pre_tokenizer"))) is not None:
            starts = [_starts_word(entry, space) for entry in entries]
        else:
            raise UserError(
                f"this tokenizer.json ({kind}) does not say where words begin; "
                "use masking=token, or a WordPiece or SentencePiece tokenizer"
            )
        made = np.array(starts, bool)
        made[list(self.special)] = True
        made.flags.writeable = False
        return made

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, [n] uint32, without special tokens; empty where nothing is left."""
        with self._telling():
            encodings = self._encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of these ids, special tokens shown."""
        with self._telling():
            return self._encoder.decode([int(i) for i in ids], skip_special_tokens=False)

    def token(self, index: int) -> str:
        """The vocabulary entry of one id.

        Raises:
            IndexError: no such id.
        """
        entry = self._encoder.id_to_token(int(index))
        if entry is None:
            raise IndexError(f"id {index} lies beyond the vocabulary of {self.vocab_size}")
        return entry

    def _telling(self) -> AbstractContextManager[None]:
        what = f"{self._name}: the tokenizers library gave up on it"
        return library_errors(what, "mend it, or take another tokenizer")

    def save(self, path: Path | str) -> None:
        """Write tokenizer.json: exactly the bytes that `digest` speaks of.

        Raises:
            OSError: the disk is full or refuses; an older file is untouched.
        """
        atomic.write_bytes(path, self.json)


def _metaspace(spec: dict[str, Any] | None) -> str | None:
    """What stands for a space, from the pre-tokenizer of a tokenizer.json; None without one."""
    steps = (spec or {}).get("pretokenizers", [spec or {}])
    return next((s.get("replacement") for s in steps if s.get("type") == "Metaspace"), None)


def _starts_word(piece: str, space: str) -> bool:
    if piece.startswith((space, "<")) or piece in _PUNCTUATION:
        return True
    return any(c.lower() not in _LETTERS and c not in _PUNCTUATION for c in piece)
