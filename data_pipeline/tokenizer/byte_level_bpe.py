"""Byte-level BPE of GPT-2, RoBERTa and ModernBERT: trained, or from the two files of older models.

As `RobertaConverter` of transformers (convert_slow_tokenizer.py): a space before a word is a part
of its first piece, written "Ġ". A trained one has ModernBERT's special tokens, which are named as
BERT's, with NFC before as in GPT-NeoX's tokenizer, of which ModernBERT's is a copy; or RoBERTa's
with RoBERTa's ids.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from bert_jax.data_pipeline.tokenizer.json_file import (
    ROBERTA_TOKENS,
    SPECIAL_TOKENS,
    library_errors,
    tokenizer_json,
)
from bert_jax.errors import UserError
from bert_jax.storage.read_files import read_bytes
from bert_jax.storage.regular_file import TOKENIZER
from bert_jax.storage.remote import storage_errors

SpecialTokens = Literal["modernbert", "roberta"]
_PAD, _UNK, _CLS, _SEP, _MASK = ROBERTA_TOKENS
# The special tokens before and after all other entries.
_NUMBERED: Final[dict[SpecialTokens, tuple[Sequence[str], Sequence[str]]]] = {
    "modernbert": (SPECIAL_TOKENS, ()),
    "roberta": ((_CLS, _PAD, _SEP, _UNK), (_MASK,)),  # as fairseq's dictionary
}
_FEWEST: Final = 2  # occurrences of a pair that is merged


def from_files(vocabulary: Path, merges: Path, *, add_prefix_space: bool = False) -> bytes:
    """Returns the tokenizer.json of a vocab.json and a merges.txt.

    Args:
        add_prefix_space: whether a text is split as if a space came before it.

    Raises:
        UserError: a file is missing, they do not belong together, or a special token of RoBERTa is
            not in the vocabulary.
    """
    for file in (vocabulary, merges):
        with storage_errors(file, "cannot read the vocabulary", "; a byte-level BPE needs both"):
            read_bytes(file, TOKENIZER)
    with library_errors(f"{vocabulary}, {merges.name}: no byte-level BPE", "download them again"):
        encoder = tokenizers.Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    vocab = encoder.get_vocab()
    if (last := max(vocab.values(), default=0)) >= len(vocab):  # the library would list every id
        raise UserError(
            f"{vocabulary}: has the id {last:,} among {len(vocab):,} entries; copy it again"
        )
    if missing := [token for token in ROBERTA_TOKENS if token not in vocab]:
        raise UserError(f"{vocabulary}: no {' '.join(missing)}; give the files of a RoBERTa")
    return _as_roberta(encoder, vocab, add_prefix_space)


def _as_roberta(
    encoder: tokenizers.Tokenizer, vocab: Mapping[str, int], add_prefix_space: bool
) -> bytes:
    """Returns the tokenizer.json of a model with RoBERTa's special tokens, as RoBERTa's."""
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    encoder.decoder = decoders.ByteLevel()
    encoder.post_processor = processors.RobertaProcessing(
        (_SEP, vocab[_SEP]), (_CLS, vocab[_CLS]), add_prefix_space=add_prefix_space
    )
    encoder.add_special_tokens([token for token in ROBERTA_TOKENS if token != _MASK])
    encoder.add_special_tokens([tokenizers.AddedToken(_MASK, lstrip=True)])
    return encoder.to_str(pretty=True).encode()


def train(texts: Iterable[str], vocab_size: int, special_tokens: SpecialTokens) -> bytes:
    """Trains a tokenizer.json; arguments and errors as `Tokenizer.train`.

    The same texts give the same bytes in every process, in any order and on any number of cores:
    the trainer counts words, numbers bytes in their order, and of pairs with equal counts merges
    that with the lowest ids first. Every byte has an entry, so no text is unknown. Lines are
    counted with a space before them, as `Tokenizer.encode` reads sentences.
    """
    first, last = _NUMBERED[special_tokens]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(first) + len(alphabet) + len(last)
    if vocab_size < smallest:
        raise UserError(
            f"vocabulary of {vocab_size} entries: byte-level BPE needs at least {smallest} (every "
            "byte and the special tokens); request more"
        )
    encoder = tokenizers.Tokenizer(models.BPE())
    encoder.normalizer = _normalizer(special_tokens)
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(last),
        min_frequency=_FEWEST,
        special_tokens=list(first),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    lines = (f" {line}" for text in texts for line in text.splitlines() if line.strip())
    if (start := next(lines, None)) is None:
        raise UserError("no text to train a vocabulary on; check the sources")
    encoder.train_from_iterator(itertools.chain([start], lines), trainer)
    model = json.loads(encoder.to_str())["model"]
    vocab = {**model["vocab"], **{token: len(model["vocab"]) + i for i, token in enumerate(last)}}
    merges = [(left, right) for left, right in model["merges"]]
    encoder = tokenizers.Tokenizer(models.BPE(vocab, merges))
    encoder.normalizer = _normalizer(special_tokens)
    if special_tokens == "roberta":
        return _as_roberta(encoder, vocab, add_prefix_space=False)
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    return tokenizer_json(encoder, lstrip_mask=True)


def _normalizer(special_tokens: SpecialTokens) -> normalizers.Normalizer | None:
    return normalizers.NFC() if special_tokens == "modernbert" else None


def with_prefix_space(data: bytes) -> bytes:
    """Returns the tokenizer.json of a byte-level BPE that puts a space before every text, as
    transformers' `add_prefix_space=True`, which `is_split_into_words=True` needs."""
    spec = json.loads(data)
    first: dict[str, Any] = spec["pre_tokenizer"]
    first = first.get("pretokenizers", [first])[0]
    if first["type"] == "ByteLevel":
        wanted = [first, spec.get("post_processor") or {}]
        changed = [step for step in wanted if step.get("add_prefix_space") is False]
        for step in changed:
            step["add_prefix_space"] = True
    else:  # it would put a space before each part of a word that the first step splits
        space = {"type": "Prepend", "prepend": " "}
        others = spec["normalizer"] or {}
        steps = others.get("normalizers", [others] if others else [])
        changed = [] if space in steps else [space]
        if changed:
            spec["normalizer"] = {"type": "Sequence", "normalizers": [*steps, space]}
    return json.dumps(spec, ensure_ascii=False, indent=2).encode() if changed else data
