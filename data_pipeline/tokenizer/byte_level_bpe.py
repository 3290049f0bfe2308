"""Byte-level BPE of GPT-2 and RoBERTa, from the two files of older models.

As `RobertaConverter` of transformers (convert_slow_tokenizer.py): a space before a word is a part
of its first piece, written "Ġ".
"""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from bert_jax.data_pipeline.tokenizer.json_file import ROBERTA_TOKENS, library_errors
from bert_jax.errors import UserError
from bert_jax.storage.read_files import read_bytes
from bert_jax.storage.regular_file import TOKENIZER
from bert_jax.storage.remote import storage_errors


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
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    encoder.decoder = decoders.ByteLevel()
    _, _, cls, sep, mask = ROBERTA_TOKENS
    encoder.post_processor = processors.RobertaProcessing(
        (sep, vocab[sep]), (cls, vocab[cls]), add_prefix_space=add_prefix_space
    )
    encoder.add_special_tokens([token for token in ROBERTA_TOKENS if token != mask])
    encoder.add_special_tokens([tokenizers.AddedToken(mask, lstrip=True)])
    return encoder.to_str(pretty=True).encode()


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
