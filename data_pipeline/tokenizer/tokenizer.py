"""Tokenizers: load, train, encode and decode.

Every kind is converted to a tokenizer.json of the `tokenizers` library, which does all encoding;
wordpiece.py and sentencepiece_model.py describe how text is split.
"""

# Over 300 lines: one class, all of whose methods read one tokenizer.json.

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
import tokenizers
from tokenizers import decoders

from bert_jax.data_pipeline.tokenizer import byte_level_bpe, fast_bpe, wordpiece
from bert_jax.data_pipeline.tokenizer.byte_level_bpe import SpecialTokens, with_prefix_space
from bert_jax.data_pipeline.tokenizer.frame import Frame, find_frame
from bert_jax.data_pipeline.tokenizer.json_file import (
    SPECIAL_TOKENS,
    SpecialIds,
    library_errors,
    special_ids,
)
from bert_jax.data_pipeline.tokenizer.specials_in_text import reading_specials_as_text
from bert_jax.data_pipeline.tokenizer.word_starts import (
    BEGINS,
    BYTE_SPACE,
    NEXT_BEGINS,
    find_word_starts,
    is_byte_level,
    needs_space,
    replaced_space,
)
from bert_jax.data_pipeline.tokenizer.words import Split, splits_of
from bert_jax.errors import UserError, hub_hint
from bert_jax.storage.digest import sha256
from bert_jax.storage.outputs import OutputKind, write_output
from bert_jax.storage.read_files import path_of, read_bytes
from bert_jax.storage.regular_file import TOKENIZER
from bert_jax.storage.remote import is_remote, storage_errors

__all__ = ["SPECIAL_TOKENS", "Algorithm", "Encoded", "SpecialIds", "Tokenizer"]

Algorithm = Literal["wordpiece", "unigram", "bpe", "byte_bpe"]
# Of its bytes, every program that trains a vocabulary writes the like.
VOCABULARY: Final = OutputKind("tokenizer.json", None, in_buckets=False)
_BYTES: Final = decoders.ByteLevel()
_OTHER_FORMATS = "a vocab.txt or a SentencePiece .model"
_FORMATS = f"a tokenizer.json, {_OTHER_FORMATS}"
_JSON_OBJECT: Final = re.compile(rb'\s*\{\s*"\w')  # no entry of a vocab.txt begins like this


class Encoded(NamedTuple):
    """The ids of texts, one after the other, uint32; and their number for each, int64 [texts]."""

    ids: np.ndarray
    lengths: np.ndarray

    def by_text(self) -> list[np.ndarray]:
        """Returns the ids of each text, uint32 [n]."""
        pairs = zip(np.cumsum(self.lengths).tolist(), self.lengths.tolist(), strict=True)
        return [self.ids[end - n : end] for end, n in pairs]


class Tokenizer:
    """A tokenizer.json with its properties; encodes text and decodes ids.

    Attributes:
        json: the bytes of tokenizer.json; the store and the exported model contain the same bytes.
        digest: sha256 of `json`.
        split_special_tokens: whether "[MASK]" in a text of a user is text, as the setting of this
            name in transformers; else it is the special token.
        vocab_size: number of ids.
        special: ids of the five special tokens.
        commits: of the model on the hub that it is of, see `hub.recorded`.
        has_unknown_pieces: whether the tokenizers library has more ids, all unknown: fast_bpe.py.
    """

    def __init__(
        self, data: bytes, *, name: str = "tokenizer.json", split_special_tokens: bool = False
    ) -> None:
        """Parses the bytes of a tokenizer.json.

        Raises:
            UserError: it is not one, its ids have gaps, or a special token is missing.
        """
        remedy = f"pass one written by the tokenizers library, {_OTHER_FORMATS}"
        with library_errors(f"{name}: not a tokenizer.json", remedy):
            self._encoder = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
        self._name = name
        self.json, self.split_special_tokens = data, split_special_tokens
        self.digest, self.commits = sha256(data), dict[str, str]()
        vocab = self._encoder.get_vocab(with_added_tokens=True)
        self.special = special_ids(vocab, name)
        last = self._encoder.get_vocab_size(with_added_tokens=True) - 1
        if max(vocab.values()) != last:
            raise UserError(f"{name}: ids must run from 0 to {last} without gaps")
        self.vocab_size = fast_bpe.count_entries(self._encoder, self.special)
        self.has_unknown_pieces = self.vocab_size <= last
        # "[MASK]" in text for pretraining must not become the special id. This is not saved: the
        # file still maps "[MASK]" to the id, which fill-mask users need.
        with self._errors():
            self._encoder = reading_specials_as_text(self._encoder, data, self.special)

    @classmethod
    def load(cls, path: Path | str, *, lowercase: bool | None = None) -> "Tokenizer":
        """Loads a tokenizer.json, a SentencePiece model or a vocab.txt (id = line number).

        Args:
            path: a JSON object is a tokenizer.json, whatever the name of its file; else a .model
                file is a SentencePiece model, which keeps its ids (missing special tokens are added
                at the end), and any other a vocab.txt.
            lowercase: for a vocab.txt, whether text is lowercased and accents are stripped. None
                infers it: cased if any entry has an uppercase letter.

        Raises:
            UserError: no such file, not UTF-8, repeated entries, a missing special token,
                `lowercase` contradicts the entries, or a .model that cannot be converted.
        """
        path = path_of(str(path))
        hint = "" if is_remote(path) or path.exists() else hub_hint(str(path))
        with storage_errors(path, "cannot read the vocabulary", f"; pass {_FORMATS}{hint}"):
            data = read_bytes(path, TOKENIZER).removeprefix(codecs.BOM_UTF8)
        # `data tokenizer` writes a tokenizer.json to whatever name --out gives.
        is_json = path.suffix == ".json" or _JSON_OBJECT.match(data)
        if path.suffix == ".model" and not is_json:
            from bert_jax.data_pipeline.tokenizer.sentencepiece_model import convert

            return cls(convert(data, str(path)), name=str(path))
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not UTF-8 at byte {error.start}; pass {_FORMATS}") from None
        if is_json:
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
        special_tokens: SpecialTokens = "modernbert",
    ) -> "Tokenizer":
        """Trains a vocabulary. The same texts give the same bytes in every process.

        Args:
            texts: cleaned text, any number of lines each; read once.
            vocab_size: number of entries, special tokens included. SentencePiece returns exactly
                this number, the others fewer if the text does not yield more.
            model: "wordpiece", SentencePiece's "unigram" or "bpe", or "byte_bpe".
            lowercase: train on lowercased text and encode the same way. WordPiece also strips
                accents, as BERT does; SentencePiece folds case and keeps accents; byte-level BPE
                always keeps both.
            special_tokens: of byte-level BPE.

        Raises:
            UserError: no text, or vocab_size too small or too large for it.
        """
        if model == "wordpiece":
            return cls(wordpiece.train(texts, vocab_size, lowercase=lowercase))
        if model == "byte_bpe":
            return cls(byte_level_bpe.train(texts, vocab_size, special_tokens))
        from bert_jax.data_pipeline.tokenizer.sentencepiece_model import convert, train_model

        trained = train_model(texts, vocab_size, model, lowercase=lowercase)
        return cls(convert(trained, "the trained model"))

    @cached_property
    def _needs_space(self) -> bool:
        return needs_space(json.loads(self.json))

    @cached_property
    def word_starts(self) -> np.ndarray:
        """Word starts, bits of word_starts.py, uint8 [vocab_size], read-only: 1, a word begins with
        the entry; 2, after it. Special tokens are words of their own. UserError if the
        tokenizer.json does not say it."""
        entries = [self.token(i) for i in range(self.vocab_size)]
        result = find_word_starts(json.loads(self.json), entries)
        result[list(self.special)] = BEGINS | (result.max(initial=0) & NEXT_BEGINS)
        result.flags.writeable = False
        return result

    @cached_property
    def frame(self) -> Frame:
        """The special tokens of pairs, see frame.py."""
        with self._errors():
            entries = (self._encoder.id_to_token(i) or "" for i in range(self.vocab_size))
            return find_frame(self._encoder, self.special, entries)

    @cached_property
    def word_splits(self) -> tuple[Split, ...]:
        """See `splits_of`."""
        return splits_of(self._encoder)

    def for_task(self, *, in_words: bool, split_special_tokens: bool) -> "Tokenizer":
        """Returns the tokenizer of a task, whose tokenizer.json `AutoTokenizer` reads as we do.

        Args:
            in_words: the texts are given in words, as with transformers' `is_split_into_words`.
                Byte-level BPE then puts a space before each, so that it is the word in a text.
            split_special_tokens: see the attribute.
        """
        data = with_prefix_space(self.json) if in_words and self._is_byte_level else self.json
        if data == self.json and split_special_tokens == self.split_special_tokens:
            return self
        return Tokenizer(data, name=self._name, split_special_tokens=split_special_tokens)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Returns the ids of sentences for pretraining, without special tokens; "[MASK]" in them is
        text.

        Byte-level BPE, and one in which nothing but a space begins words, as Gemma's: encoded with
        a space before it, as within a paragraph, so that its first piece begins a word.
        """
        if self._needs_space:
            texts = [f" {text}" for text in texts]
        return self._encoded(self._encoder, texts)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of each sentence as in `encode`, uint32 [n]; may be empty."""
        return self.encode(texts).by_text()

    def encode_texts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of each text or word of a user, uint32 [n], as `AutoTokenizer`: "[MASK]"
        and other special tokens in it are recognized, but see `split_special_tokens`. None is
        added, nor a space."""
        return self._encoded(self._reader, texts).by_text()

    @cached_property
    def _reader(self) -> tokenizers.Tokenizer:
        """An encoder of its own: a setting cannot be changed while other threads encode."""
        encoder = tokenizers.Tokenizer.from_str(self.json.decode())
        encoder.encode_special_tokens = self.split_special_tokens
        encoder.no_truncation()
        encoder.no_padding()
        return encoder

    def _encoded(self, encoder: tokenizers.Tokenizer, texts: Sequence[str]) -> Encoded:
        with self._errors():
            encodings = encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        lists = [encoding.ids for encoding in encodings]
        ids = self._known(chain.from_iterable(lists))
        return Encoded(ids, np.fromiter(map(len, lists), np.int64, len(lists)))

    def encode_spans(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the ids of each text, as `encode_texts`, and where each piece stands in the text,
        int32 [n, 2]: its first character and the one after its last, without the space before it.
        """
        with self._errors():
            encodings = self._reader.encode_batch(list(texts), add_special_tokens=False)
        return [
            (self._known(encoding.ids), piece_spans(text, encoding.offsets))
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def encode_words(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the ids of each text, as `encode_texts`, and the number of each piece's word,
        int64 [n]: that of transformers' `word_ids`, or where nothing cuts a text at spaces, as
        Gemma's, that of the parts between them."""
        space = replaced_space(json.loads(self.json))
        with self._errors():
            encodings = self._reader.encode_batch(list(texts), add_special_tokens=False)
        words = [
            np.cumsum([piece.startswith(space) for piece in encoding.tokens])
            if space
            else np.array(encoding.word_ids, np.int64)
            for encoding in encodings
        ]
        ids = [self._known(encoding.ids) for encoding in encodings]
        return list(zip(ids, words, strict=True))

    def _known(self, ids: Iterable[int]) -> np.ndarray:
        """Returns ids, uint32, those of pieces without an entry replaced by that of [UNK]."""
        result = np.fromiter(ids, np.uint32)
        if self.has_unknown_pieces:
            result[result >= self.vocab_size] = self.special.unk
        return result

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of these ids, special tokens included."""
        with self._errors():
            return self._encoder.decode([int(i) for i in ids], skip_special_tokens=False)

    def token(self, index: int) -> str:
        """Returns the vocabulary entry of an id; IndexError if there is none."""
        entry = self._encoder.id_to_token(int(index))
        if entry is None or index >= self.vocab_size:
            raise IndexError(f"id {index} is outside the vocabulary of {self.vocab_size}")
        return entry

    def readable(self, index: int) -> str:
        """Returns the entry of an id as people read it: that of byte-level BPE as characters, with
        the mark "Ġ" of a space before it; others as `token`. Bytes that are a part of a
        character are "�"."""
        entry = self.token(index)
        if not self._is_byte_level or index in self.special:
            return entry
        text = _BYTES.decode([entry.removeprefix(BYTE_SPACE)])
        return BYTE_SPACE + text if entry.startswith(BYTE_SPACE) else text

    @cached_property
    def _is_byte_level(self) -> bool:
        return is_byte_level(json.loads(self.json))

    def _errors(self) -> AbstractContextManager[None]:
        what = f"{self._name}: the tokenizers library failed"
        return library_errors(what, "fix the file or use another tokenizer")

    def save(self, path: Path | str, *, overwrite: bool = False) -> None:
        """Writes `json` as a file.

        overwrite: replace another file; by default, only an empty one or one with these bytes.

        Raises:
            UserError: as `check_output`.
            StorageError: it cannot be written; an existing file is unchanged.
        """
        write_output(path, self.json, VOCABULARY, overwrite=overwrite)


def piece_spans(text: str, offsets: Sequence[tuple[int, int]]) -> np.ndarray:
    """Returns where pieces stand in their text, int32 [n, 2], without the spaces before them, which
    some tokenizers include."""
    spans = list(offsets)
    for i, (start, end) in enumerate(spans):
        while start < end - 1 and text[start].isspace():
            start += 1
        spans[i] = start, end
    return np.array(spans, np.int32).reshape(-1, 2)
