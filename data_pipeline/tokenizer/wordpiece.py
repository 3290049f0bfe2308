"""WordPiece: trained, or from the entries of a vocab.txt; both produce a tokenizer.json.

Encodes like google-research/bert `tokenization.py` (BasicTokenizer, then greedy longest match
first). Words longer than 100 characters become [UNK], as in its first release and in `transformers`
(its last commit has 200).
"""

import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from bert_jax.data_pipeline.tokenizer.json_file import SPECIAL_TOKENS, tokenizer_json
from bert_jax.errors import UserError

PREFIX = "##"
LONGEST_WORD = 100
ALPHABET_LIMIT = 1000  # characters that `train` retains, most frequent first
LEFT_OUT = 1e-3  # of the text: more is left out only for want of entries


def from_entries(entries: Sequence[str], *, lowercase: bool | None, name: str) -> bytes:
    """Returns the tokenizer.json of a vocabulary, id = index.

    Args:
        lowercase: whether text is lowercased and accents are stripped. None infers it: cased if any
            entry has an uppercase letter.

    Raises:
        UserError: repeated entries, a missing special token, or `lowercase` contradicts them.
    """
    if not isinstance(lowercase, bool | None):  # read from a third-party tokenizer_config.json
        raise UserError(f"{name}: do_lower_case is {lowercase!r}, must be true or false")
    vocab = {entry: i for i, entry in enumerate(entries)}
    if len(vocab) != len(entries):
        entry, count = Counter(entries).most_common(1)[0]
        first = entries.index(entry)
        second = entries.index(entry, first + 1)
        raise UserError(
            f"{name}: {entry!r} occurs on lines {first + 1} and {second + 1}"
            f"{' and others' if count > 2 else ''}; take the original file, or train a vocabulary "
            "(without a line all later entries would have other ids)"
        )
    if missing := [token for token in SPECIAL_TOKENS if token not in vocab]:
        raise UserError(
            f"{name}: no {' '.join(missing)} among {len(vocab):,} entries; is it a WordPiece "
            "vocabulary? Use one of a BERT, or train one"
        )
    cased = any(entry != entry.lower() for entry in entries if not entry.startswith("["))
    if lowercase is None:
        lowercase = not cased
    elif lowercase and cased:
        raise UserError(
            f"{name}: entries with capital letters, which lower-cased text never matches; "
            "say that it is cased: lowercase=False, `bert-jax data build --cased`, or "
            '"do_lower_case": false in the tokenizer_config.json beside it'
        )
    return _convert(vocab, lowercase)


def train(texts: Iterable[str], vocab_size: int, *, lowercase: bool) -> bytes:
    """Trains a tokenizer.json, merged by pair counts; arguments and errors as `Tokenizer.train`.

    The same texts give the same bytes in every process. `tokenizers` alone does not ensure that: it
    numbers the "##" characters in hash order, and that order breaks ties between merges of equal
    count. So the alphabet is counted first and passed in a fixed order. Texts are read once; a
    temporary file stores them between the two passes.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as spool:
        alphabet = _alphabet(_spool(texts, spool, _normalizer(lowercase)), vocab_size)
        if not alphabet:
            raise UserError("no text to train a vocabulary on; check the sources")
        smallest = len(SPECIAL_TOKENS) + 2 * len(alphabet)
        if vocab_size < smallest:
            raise UserError(
                f"vocabulary of {vocab_size} entries: this text needs at least {smallest} "
                "(every character, inside and at the start of words); request more"
            )
        entries = _merge(spool, vocab_size, alphabet)
    return _convert({entry: i for i, entry in enumerate(entries)}, lowercase)


def _convert(vocab: Mapping[str, int], lowercase: bool) -> bytes:
    model = models.WordPiece(
        dict(vocab),
        unk_token="[UNK]",
        max_input_chars_per_word=LONGEST_WORD,
        continuing_subword_prefix=PREFIX,
    )
    encoder = tokenizers.Tokenizer(model)
    encoder.normalizer = _normalizer(lowercase)
    encoder.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    encoder.decoder = decoders.WordPiece(prefix=PREFIX)
    return tokenizer_json(encoder)


def _normalizer(lowercase: bool) -> normalizers.Normalizer:
    # strip_accents=None follows lowercase, as the original BasicTokenizer does.
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
    )


def _spool(texts: Iterable[str], spool: TextIO, normalizer: normalizers.Normalizer) -> Counter[str]:
    """Writes normalized text to `spool`; returns how often each character occurs."""
    counts: Counter[str] = Counter()
    for text in texts:
        normalized = normalizer.normalize_str(text)
        counts.update(normalized)
        spool.write(normalized + "\n")
    return counts


def _alphabet(counts: Counter[str], vocab_size: int) -> list[str]:
    """Returns the characters of the vocabulary, most frequent first. They take at most two thirds
    of it, since each is an entry twice, but `ALPHABET_LIMIT` characters are always admitted."""
    ranked = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))
    allowed = LEFT_OUT * sum(counts[c] for c in ranked)
    left_out = sum(counts[c] for c in ranked[ALPHABET_LIMIT:])
    limit = ALPHABET_LIMIT
    while left_out > allowed and limit < vocab_size // 3:
        left_out -= counts[ranked[limit]]
        limit += 1
    return ranked[:limit]


def _merge(spool: TextIO, vocab_size: int, alphabet: Sequence[str]) -> list[str]:
    """Returns the entries: special tokens, characters, "##" characters, merges in order."""
    characters = sorted(alphabet)
    entries = [*SPECIAL_TOKENS, *characters, *(PREFIX + c for c in characters)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        # Special tokens are numbered in this order, before all others, which are in hash order.
        special_tokens=entries,
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    encoder = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    encoder.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    spool.seek(0)
    encoder.train_from_iterator((line.rstrip("\n") for line in spool), trainer)
    vocab = encoder.get_vocab(with_added_tokens=True)
    return sorted(vocab, key=vocab.__getitem__)
