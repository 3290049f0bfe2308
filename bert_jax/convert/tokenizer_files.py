"""The tokenizer files of an export, with which `AutoTokenizer` produces our ids.

`tokenizer.json` is that of the model byte for byte, with two exceptions: that of a tagger with a
byte-level BPE puts a space before every word, see `Tokenizer.for_task`; and a post-processor that
does not add the special tokens that the model has read is replaced.

For BERT's WordPiece, transformers does not use it unchanged: from `tokenizer_config.json`, 4.x
overrides its normalizer and 5.x rebuilds the entire tokenizer. That file must therefore agree with
tokenizer.json. A PhoBERT tokenizer with pieces that have no entry is read by its own class, from
vocab.txt and bpe.codes. Every other tokenizer, SentencePiece included, is exported under the class
that reads only tokenizer.json.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

from bert_jax.data_pipeline.tokenizer import fast_bpe
from bert_jax.data_pipeline.tokenizer.frame import post_processor
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.data_pipeline.tokenizer.wordpiece import LONGEST_WORD, PREFIX


def tokenizer_files(
    tokenizer: Tokenizer, max_length: int, *, token_types: bool = True
) -> dict[str, bytes]:
    """Returns file name -> contents.

    Args:
        max_length: tokens to which transformers truncates a text, as does sentence-transformers.
        token_types: whether the model accepts them; transformers passes all that a tokenizer gives.
    """
    spec, data = json.loads(tokenizer.json), tokenizer.json
    if tokenizer.frame.unlike:
        spec["post_processor"] = post_processor(tokenizer.frame, *ends_of(tokenizer))
        data = json_bytes(spec)
    pad, unk, cls, sep, mask = map(tokenizer.token, tokenizer.special)
    specials = {
        "cls_token": cls, "mask_token": mask, "pad_token": pad, "sep_token": sep, "unk_token": unk,
    }  # fmt: skip
    settings = {
        **_class_settings(spec, tokenizer),
        "clean_up_tokenization_spaces": True,
        "model_max_length": max_length,
        **specials,
    }
    if tokenizer.split_special_tokens:
        settings["split_special_tokens"] = True
    if names := _input_names(settings["tokenizer_class"], tokenizer, token_types):
        settings["model_input_names"] = names
    files = {
        "tokenizer.json": data,
        "tokenizer_config.json": json_bytes(settings),
        "special_tokens_map.json": json_bytes(specials),
    }
    if spec["model"]["type"] == "WordPiece":  # the only one that a vocab.txt can describe
        entries = sorted(spec["model"]["vocab"], key=spec["model"]["vocab"].__getitem__)
        files["vocab.txt"] = "".join(f"{entry}\n" for entry in entries).encode()
        # Where they match a text is in tokenizer.json.
        added = {token["content"]: token["id"] for token in spec["added_tokens"]}
        if beyond := {token: i for token, i in added.items() if i >= len(entries)}:
            files["added_tokens.json"] = json_bytes(beyond)
    if tokenizer.has_unknown_pieces:
        files |= fast_bpe.to_files(spec, tokenizer.vocab_size)
    return files


def ends_of(tokenizer: Tokenizer) -> Iterator[tuple[str, int]]:
    """Yields [CLS] and [SEP] with their ids."""
    for index in (tokenizer.special.cls, tokenizer.special.sep):
        yield tokenizer.token(index), index


def lowercases(tokenizer: Tokenizer) -> bool:
    """Returns whether text is lower-cased before it is split."""
    normalizer = tokenizers.Tokenizer.from_str(tokenizer.json.decode()).normalizer
    return normalizer is not None and normalizer.normalize_str("A") == "a"


def json_bytes(value: Any) -> bytes:
    """Returns the value as indented UTF-8 JSON."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _input_names(kind: str, tokenizer: Tokenizer, token_types: bool) -> list[str]:
    """Returns what transformers is to give the model; empty if that is what the class gives: only
    BertTokenizer gives token types in 4 and in 5."""
    second = tokenizer.frame.second_type
    if not token_types or (kind == "BertTokenizer" and not second):
        return ["input_ids", "attention_mask"]
    return [] if kind == "BertTokenizer" else ["input_ids", "token_type_ids", "attention_mask"]


def is_of_bert(spec: Mapping[str, Any]) -> bool:
    """Returns whether a tokenizer.json is one that transformers' BertTokenizer makes from its
    entries, with some normalizer of BERT."""
    normalizer, model = spec.get("normalizer") or {}, spec["model"]
    return (
        normalizer.get("type") == "BertNormalizer"
        and normalizer.get("clean_text") is True
        and (spec.get("pre_tokenizer") or {}).get("type") == "BertPreTokenizer"
        and model.get("type") == "WordPiece"
        and model.get("max_input_chars_per_word") == LONGEST_WORD
        and model.get("continuing_subword_prefix") == PREFIX
    )


def _class_settings(spec: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the transformers class that reads the tokenizer, and the settings it needs."""
    if tokenizer.has_unknown_pieces:
        return {"tokenizer_class": fast_bpe.CLASS}
    normalizer = spec["normalizer"] or {}
    if not is_of_bert(spec):  # the class that uses tokenizer.json unchanged
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
        # but for this, which 4.x takes from here
        prefix = (spec["pre_tokenizer"] or {}).get("add_prefix_space")
        return settings if prefix is None else {**settings, "add_prefix_space": prefix}
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": normalizer["lowercase"],
        "strip_accents": normalizer["strip_accents"],
        "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
    }
