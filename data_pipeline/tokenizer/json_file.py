"""What every tokenizer.json of this project has in common: the special tokens and the templates."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import tokenizers
from tokenizers import processors

from bert_jax.data_pipeline.errors import UserError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LONGEST_REASON = 200  # characters


class SpecialIds(NamedTuple):
    """The ids of [PAD], [UNK], [CLS], [SEP] and [MASK]."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


@contextmanager
def library_errors(what: str, remedy: str) -> Iterator[None]:
    """Turns what the tokenizers library raises into a UserError: `what` (its reason); `remedy`.

    It raises plain Exception, where an entry of the vocabulary is missing for example; and where a
    regular expression backtracks without end it panics, which is no Exception, so that `except
    Exception` lets it pass, and which no other process can be told of.
    """
    try:
        yield
    except BaseException as error:
        plain = type(error) is Exception or isinstance(error, UnicodeDecodeError)
        if not plain and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())
        if len(reason) > _LONGEST_REASON:
            reason = f"{reason[:_LONGEST_REASON]}…"
        raise UserError(f"{what} ({reason}); {remedy}") from None


def special_ids(vocab: Mapping[str, int], name: str) -> SpecialIds:
    """The ids of the special tokens in a vocabulary; `name` is for messages.

    Raises:
        UserError: one of them is missing.
    """
    missing = [token for token in SPECIAL_TOKENS if token not in vocab]
    if missing:
        raise UserError(
            f"{name}: no {' '.join(missing)} among {len(vocab):,} entries; pretraining needs "
            f"{' '.join(SPECIAL_TOKENS)}, so take a BERT vocabulary or train one"
        )
    return SpecialIds(*(vocab[token] for token in SPECIAL_TOKENS))


def tokenizer_json(encoder: tokenizers.Tokenizer) -> bytes:
    """Add the special tokens and the templates to a tokenizer whose model has them; its bytes."""
    # What `transformers` reads from the exported file: [CLS] A [SEP] and [CLS] A [SEP] B [SEP].
    encoder.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, encoder.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    encoder.add_special_tokens(list(SPECIAL_TOKENS))
    # Through json: the library writes a vocabulary in id order, and indent=2 is what `save` of the
    # library gives, so the bytes look like any other tokenizer.json.
    return (json.dumps(json.loads(encoder.to_str()), ensure_ascii=False, indent=2) + "\n").encode()
