"""The parts that all tokenizer.json files share: special tokens and post-processing templates."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import tokenizers
from tokenizers import processors

from bert_jax.errors import UserError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_TOKENS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")  # in the same order
# mmBERT's. Gemma's vocabulary has <s> and </s>, too, as pieces of HTML.
_GEMMA_TOKENS = ("<pad>", "<unk>", "<bos>", "<eos>", "<mask>")
_MAX_REASON = 200  # characters


class SpecialIds(NamedTuple):
    """The ids of [PAD], [UNK], [CLS], [SEP] and [MASK], or of RoBERTa's or Gemma's tokens for the
    same."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


@contextmanager
def library_errors(what: str, remedy: str) -> Iterator[None]:
    """Turns exceptions of the tokenizers library into a UserError: `what` (reason); `remedy`.

    The library raises plain Exception, for example if a vocabulary entry is missing. If a regular
    expression backtracks without end it panics: a PanicException is not an Exception, so `except
    Exception` does not catch it, and it cannot be sent to another process.
    """
    try:
        yield
    except BaseException as error:
        plain = type(error) is Exception or isinstance(error, UnicodeDecodeError)
        if not plain and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())
        if len(reason) > _MAX_REASON:
            reason = f"{reason[:_MAX_REASON]}…"
        raise UserError(f"{what} ({reason}); {remedy}") from None


def special_ids(vocab: Mapping[str, int], name: str) -> SpecialIds:
    """Returns the ids of the special tokens in a vocabulary: BERT's, or Gemma's or RoBERTa's for
    those that it lacks. Raises UserError if it has none of them."""
    missing, ids = [], []
    for names in zip(SPECIAL_TOKENS, _GEMMA_TOKENS, ROBERTA_TOKENS, strict=True):
        if found := [name for name in names if name in vocab]:
            ids.append(vocab[found[0]])
        else:
            missing.append(names[0])
    if missing:
        raise UserError(
            f"{name}: no {' '.join(missing)} among {len(vocab):,} entries; pretraining needs "
            f"{' '.join(SPECIAL_TOKENS)}, or RoBERTa's {' '.join(ROBERTA_TOKENS)}; use a "
            "vocabulary of theirs or train one"
        )
    return SpecialIds(*ids)


def tokenizer_json(encoder: tokenizers.Tokenizer, *, lstrip_mask: bool = False) -> bytes:
    """Adds special tokens (already in the model) and templates; returns the tokenizer.json.

    lstrip_mask: whether [MASK] takes the spaces before it, as it does where they are a part of the
        next piece.
    """
    # `transformers` reads these templates from the exported file.
    encoder.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, encoder.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    *others, mask = SPECIAL_TOKENS
    encoder.add_special_tokens([*others, tokenizers.AddedToken(mask, lstrip=lstrip_mask)])
    # The library writes the vocabulary in id order, and its `save` uses indent=2, so the bytes have
    # the usual format of a tokenizer.json.
    return (json.dumps(json.loads(encoder.to_str()), ensure_ascii=False, indent=2) + "\n").encode()
