"""WordPiece through the `tokenizers` library: trained, or from an existing vocabulary.

Text to ids is google-research/bert `tokenization.py` (BasicTokenizer, then greedy longest match
first). Words above 100 characters become [UNK], as in the first release and in `transformers`
(the last commit of that repository has 200).
"""

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from data_pipeline.errors import UserError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PREFIX = "##"
LONGEST_WORD = 100
ALPHABET_LIMIT = 1000  # characters kept by `train`, most frequent first


class SpecialIds(NamedTuple):
    """The ids of [PAD], [UNK], [CLS], [SEP] and [MASK]."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


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
        try:
            self._encoder = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
        except Exception as error:  # the library raises plain Exception
            raise UserError(
                f"{name}: not a tokenizer.json ({error}); pass one written by the tokenizers "
                "library, or a vocab.txt"
            ) from None
        self.json = data
        self.digest = hashlib.sha256(data).hexdigest()
        self.vocab_size: int = self._encoder.get_vocab_size(with_added_tokens=True)
        vocab = self._encoder.get_vocab(with_added_tokens=True)
        self.special = SpecialIds(*_special_ids(vocab, name))
        if max(vocab.values()) != self.vocab_size - 1:
            raise UserError(f"{name}: ids must run from 0 to {self.vocab_size - 1} without gaps")
        # A text that speaks of "[MASK]" must not hold the special id; this setting lives in
        # memory only, so the saved file still turns "[MASK]" into the id for whoever fills masks.
        self._encoder.encode_special_tokens = True
        self._encoder.no_truncation()
        self._encoder.no_padding()

    @classmethod
    def load(cls, path: Path | str, *, lowercase: bool | None = None) -> "Tokenizer":
        """Read a tokenizer.json or a vocab.txt (one entry a line, id = line number).

        Args:
            path: the file; a name ending in .json is a tokenizer.json.
            lowercase: for a vocab.txt, whether text is lower-cased and stripped of accents.
                None asks the vocabulary: cased if any entry has a capital letter.

        Raises:
            UserError: no such file, not UTF-8, entries repeated, a special token missing, or
                `lowercase` against what the entries show.
        """
        path = Path(path)
        try:
            data = path.read_bytes()
            text = data.decode("utf-8")
        except OSError as error:
            raise UserError(
                f"{path}: cannot read the vocabulary ({error.strerror}); "
                "pass a vocab.txt or a tokenizer.json"
            ) from None
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}: not UTF-8 at byte {error.start}; pass a vocab.txt or a tokenizer.json"
            ) from None
        if path.suffix == ".json":
            return cls(data, name=str(path))
        entries = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
        return cls.from_vocab(entries, lowercase=lowercase, name=str(path))

    @classmethod
    def from_vocab(
        cls, entries: Sequence[str], *, lowercase: bool | None = None, name: str = "vocabulary"
    ) -> "Tokenizer":
        """A tokenizer over these entries, id = index. Arguments and errors as in `load`."""
        vocab = {entry: i for i, entry in enumerate(entries)}
        if len(vocab) != len(entries):
            entry, count = Counter(entries).most_common(1)[0]
            first = entries.index(entry)
            second = entries.index(entry, first + 1)
            raise UserError(
                f"{name}: {entry!r} stands on lines {first + 1} and {second + 1}"
                f"{' and others' if count > 2 else ''}; remove the repeated entries"
            )
        _special_ids(vocab, name)
        cased = any(entry != entry.lower() for entry in entries if not entry.startswith("["))
        if lowercase is None:
            lowercase = not cased
        elif lowercase and cased:
            raise UserError(
                f"{name}: entries with capital letters, which lower-cased text never matches; "
                "say that it is cased (--cased, lowercase=False)"
            )
        return cls(_tokenizer_json(vocab, lowercase), name=name)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, *, lowercase: bool = True) -> "Tokenizer":
        """Train a WordPiece vocabulary of at most `vocab_size` entries (merges by pair counts).

        The same texts give the same bytes, in every process. `tokenizers` alone does not: it
        numbers the "##" characters in hash order, and merges of equal count are taken in the
        order of those numbers. Here the alphabet is counted first and handed over in a fixed
        order. Texts are read once; a temporary file holds them between the two passes.

        Args:
            texts: cleaned text, any number of lines each.
            vocab_size: entries wanted, specials included; fewer if the text gives no more.
            lowercase: train on lower-cased text without accents, and encode the same way.

        Raises:
            UserError: no text, or a vocabulary too small for the alphabet.
        """
        with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as spool:
            alphabet = _spool(texts, spool, _normalizer(lowercase))
            if not alphabet:
                raise UserError("no text to train a vocabulary on; check the sources")
            smallest = len(SPECIAL_TOKENS) + 2 * len(alphabet)
            if vocab_size < smallest:
                raise UserError(
                    f"vocabulary of {vocab_size} entries: this text needs at least {smallest} "
                    "(every character, inside and at the start of words); ask for more"
                )
            entries = _merge(spool, vocab_size, alphabet)
        return cls(_tokenizer_json({e: i for i, e in enumerate(entries)}, lowercase))

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, [n] uint32, without special tokens; empty where nothing is left."""
        encodings = self._encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of these ids, special tokens shown."""
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

    @property
    def word_starts(self) -> np.ndarray:
        """Whether each entry begins a word: bool [V]."""
        return np.array([not self.token(i).startswith(PREFIX) for i in range(self.vocab_size)])

    def save(self, path: Path | str) -> None:
        """Write tokenizer.json: exactly the bytes that `digest` speaks of."""
        Path(path).write_bytes(self.json)


def _special_ids(vocab: dict[str, int], name: str) -> list[int]:
    missing = [token for token in SPECIAL_TOKENS if token not in vocab]
    if missing:
        raise UserError(
            f"{name}: no {' '.join(missing)} among {len(vocab):,} entries; pretraining needs "
            f"{' '.join(SPECIAL_TOKENS)}, so take a BERT vocabulary or train one"
        )
    return [vocab[token] for token in SPECIAL_TOKENS]


def _normalizer(lowercase: bool) -> normalizers.Normalizer:
    # strip_accents=None follows lowercase, as the original BasicTokenizer does.
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
    )


def _tokenizer_json(vocab: dict[str, int], lowercase: bool) -> bytes:
    model = models.WordPiece(
        vocab,
        unk_token="[UNK]",
        max_input_chars_per_word=LONGEST_WORD,
        continuing_subword_prefix=PREFIX,
    )
    encoder = tokenizers.Tokenizer(model)
    encoder.normalizer = _normalizer(lowercase)
    encoder.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # What `transformers` reads from the exported file: [CLS] A [SEP] and [CLS] A [SEP] B [SEP].
    encoder.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    encoder.decoder = decoders.WordPiece(prefix=PREFIX)
    encoder.add_special_tokens(list(SPECIAL_TOKENS))
    # Through json: the library writes a WordPiece vocabulary in id order, and pretty=True is
    # what `save` of the library gives, so the bytes look like any other tokenizer.json.
    return (json.dumps(json.loads(encoder.to_str()), ensure_ascii=False, indent=2) + "\n").encode()


def _spool(texts: Iterable[str], spool: TextIO, normalizer: normalizers.Normalizer) -> list[str]:
    """Write normalized text to `spool`; returns its alphabet, most frequent first."""
    counts: Counter[str] = Counter()
    for text in texts:
        normalized = normalizer.normalize_str(text)
        counts.update(normalized)
        spool.write(normalized + "\n")
    ranked = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))
    return ranked[:ALPHABET_LIMIT]


def _merge(spool: TextIO, vocab_size: int, alphabet: Sequence[str]) -> list[str]:
    """Entries: specials, characters, "##" characters, merges in the order they were found."""
    characters = sorted(alphabet)
    entries = [*SPECIAL_TOKENS, *characters, *(PREFIX + c for c in characters)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        # As special tokens they are numbered in this order, before anything in hash order.
        special_tokens=entries,
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    encoder = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    encoder.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    spool.seek(0)
    encoder.train_from_iterator(_lines(spool), trainer)
    vocab = encoder.get_vocab(with_added_tokens=True)
    return sorted(vocab, key=vocab.__getitem__)


def _lines(spool: TextIO) -> Iterator[str]:
    for line in spool:
        yield line.rstrip("\n")
