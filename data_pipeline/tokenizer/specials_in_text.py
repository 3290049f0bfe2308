"""Special tokens that a text spells: text for pretraining, where the model must never see them.

The tokenizers library is told not to find them (`encode_special_tokens`). That concerns added
tokens that are marked as special. Two more ways lead to their ids, both in files of released
models: an added token without the mark, and a model that has them as pieces, such as XLM-R's
Unigram, which prefers them to all others.
"""

import json
import re
from collections.abc import Iterable

import tokenizers
from tokenizers import Regex, pre_tokenizers

from bert_jax.data_pipeline.tokenizer.json_file import SpecialIds


def reading_specials_as_text(
    encoder: tokenizers.Tokenizer, data: bytes, special: SpecialIds
) -> tokenizers.Tokenizer:
    """Returns an encoder that makes pieces of a spelled special token.

    data: the tokenizer.json of the encoder.
    """
    added = encoder.get_added_tokens_decoder()
    if any(index in added and not added[index].special for index in special):
        spec = json.loads(data)
        for token in spec["added_tokens"]:
            token["special"] = token["special"] or token["id"] in special
        encoder = tokenizers.Tokenizer.from_str(json.dumps(spec))
    encoder.encode_special_tokens = True
    encoder.no_truncation()
    encoder.no_padding()
    names = [str(encoder.id_to_token(index)) for index in special]
    texts = [text for name in names for text in (name, f"a {name} a", f"a{name}a")]
    known = {*special} - {special.unk}  # a text may have characters without an entry
    if any(known & {*_ids(encoder, text)} for text in texts):
        before, splitter = encoder.pre_tokenizer, splitting(names)
        parts = [before, splitter] if before else [splitter]
        encoder.pre_tokenizer = pre_tokenizers.Sequence(parts)
    return encoder


def _ids(encoder: tokenizers.Tokenizer, text: str) -> list[int]:
    """Returns the ids of a text; none if the library refuses it, as it will where it is read."""
    try:
        ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
    except Exception:
        return []
    return ids


def splitting(names: Iterable[str], *patterns: str) -> pre_tokenizers.PreTokenizer:
    """Returns what splits text that spells one of the names after its first character, so that no
    piece is the whole name; patterns: of further characters to split after."""
    own = [f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names]
    return pre_tokenizers.Split(Regex("|".join([*own, *patterns])), "merged_with_previous")
