"""Tokenizers with post-processors of other kinds."""

import json

import tokenizers
from tokenizers import processors

from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer


def framed(tokenizer: Tokenizer, *, between: str | None = None, second: int = 1) -> Tokenizer:
    """Returns the tokenizer with another post-processor.

    between: tokens between the texts of a pair; "": nothing is added to a pair; None: there is no
        post-processor.
    second: token type of the second text.
    """
    encoder = tokenizers.Tokenizer.from_str(tokenizer.json.decode())
    special = tokenizer.special
    cls, sep = map(tokenizer.token, (special.cls, special.sep))
    pair = f"{cls} $A {between} $B:{second} {sep}:{second}" if between else "$A $B:1"
    encoder.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", pair=pair, special_tokens=[(cls, special.cls), (sep, special.sep)]
    )
    spec = json.loads(encoder.to_str())
    if between is None:
        spec["post_processor"] = None
    return Tokenizer(json.dumps(spec).encode())
