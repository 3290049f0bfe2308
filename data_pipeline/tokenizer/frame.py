"""Special tokens around a text or a pair, as the post-processor of a tokenizer.json adds them.

A model reads `[CLS] text [SEP]` or `[CLS] text … text [SEP]`. What joins the texts of a pair, and
the token types, are read from the post-processor by running it once.
"""

import json
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import tokenizers
from tokenizers import models, processors

from bert_jax.data_pipeline.tokenizer.json_file import SpecialIds

_DOUBLED: Final = "</s>"  # RoBERTa's separator: two of them are between the texts of a pair


class Frame(NamedTuple):
    """The tokens that join a pair to one row.

    Attributes:
        between: ids between the texts, of which the first ends the first text.
        types_between: the token type of each; tokens before them have type 0.
        second_type: token type of the second text and of the separator after it, 0 or 1.
        unlike: what the post-processor frames in another way: a "text", or only a "pair"; "" if
            nothing. The frame is then the usual one of the separator.
    """

    between: tuple[int, ...]
    types_between: tuple[int, ...]
    second_type: int
    unlike: Literal["", "text", "pair"] = ""

    def types(self, first: int, second: int) -> np.ndarray:
        """Returns the token types of a pair whose texts have these numbers of tokens, int32."""
        runs = [(0, 1 + first), *((kind, 1) for kind in self.types_between)]
        values, counts = zip(*runs, (self.second_type, second + 1), strict=True)
        return np.repeat(np.array(values, np.int32), counts)


def find_frame(encoder: tokenizers.Tokenizer, special: SpecialIds, entries: Iterable[str]) -> Frame:
    """Returns the frame of a tokenizer.

    entries: of its vocabulary; the first text of them that has tokens is read.
    """
    doubled = encoder.id_to_token(special.sep) == _DOUBLED
    usual = Frame((special.sep,) * (1 + doubled), (0,) * (1 + doubled), int(not doubled))
    read = ((text, encoder.encode(text, add_special_tokens=False)) for text in ("a", *entries))
    text, size = next(((text, len(one.ids)) for text, one in read if one.ids), ("", 0))
    alone, pair = encoder.encode(text), encoder.encode(text, text)
    ends = alone.ids[:1], alone.ids[1 + size :]
    if not size or ends != ([special.cls], [special.sep]) or any(alone.type_ids):
        return usual._replace(unlike="text")
    here = slice(1 + size, -1 - size)
    found = Frame(tuple(pair.ids[here]), tuple(pair.type_ids[here]), pair.type_ids[-1])
    wanted = [special.cls, *alone.ids[1:-1], *found.between, *alone.ids[1:-1], special.sep]
    fits = found.between and pair.ids == wanted and {*pair.type_ids} <= {0, 1}
    if fits and pair.type_ids == found.types(size, size).tolist():
        return found
    return usual._replace(unlike="pair")


def post_processor(frame: Frame, cls: tuple[str, int], sep: tuple[str, int]) -> dict[str, Any]:
    """Returns the post-processor of a tokenizer.json for the usual frame.

    cls, sep: the tokens of [CLS] and [SEP] with their ids.
    """
    first, last = cls[0], sep[0]
    second = frame.second_type
    holder = tokenizers.Tokenizer(models.BPE())
    holder.post_processor = processors.TemplateProcessing(
        single=[first, "$A", last],
        pair=[first, "$A", *(last for _ in frame.between), f"$B:{second}", f"{last}:{second}"],
        special_tokens=[cls, sep],
    )
    result: dict[str, Any] = json.loads(holder.to_str())["post_processor"]
    return result
