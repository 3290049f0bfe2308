"""Texts as a model reads them: `[CLS] text [SEP]` or `[CLS] text [SEP] text [SEP]`.

Where the tokenizer's separator is RoBERTa's, `</s>`, two of them are between the texts of a pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.config.schema import ModelConfig
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

_DOUBLED = "</s>"


@dataclass(frozen=True)
class Encoded:
    """The tokens of E examples.

    Attributes:
        ids, types: int32, all examples after one another.
        starts: int64 [E + 1], where each begins.
        cut: number of examples that were longer than the limit.
    """

    ids: np.ndarray
    types: np.ndarray
    starts: np.ndarray
    cut: int

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)


def encode(
    tokenizer: Tokenizer, model: ModelConfig, texts: Sequence[tuple[str, ...]], limit: int
) -> Encoded:
    """Returns the tokens of examples of one or two texts, at most `limit` each.

    Of a pair that is too long, the longer text loses its last token, again and again, as in
    `_truncate_seq_pair` of run_classifier.py.
    """
    special = tokenizer.special
    between = [special.sep] * (1 + (tokenizer.token(special.sep) == _DOUBLED))
    flat = tokenizer.encode_batch([text for pair in texts for text in pair], inside=False)
    parts, second = iter(flat), int(model.type_vocab_size > 1 and len(between) == 1)
    ids: list[np.ndarray] = []
    types: list[np.ndarray] = []
    cut = 0
    for pair in texts:
        first, *other = (next(parts) for _ in pair)
        room = limit - 2 - (len(between) if other else 0)
        sizes = len(first), len(other[0]) if other else 0
        kept = cut_longer(*sizes, room) if other else (min(sizes[0], room), 0)
        cut += kept != sizes
        head = [special.cls, *first[: kept[0]].tolist()]
        tail = [*other[0][: kept[1]].tolist(), special.sep] if other else []
        head += between if other else [special.sep]
        ids.append(np.array(head + tail, np.int32))
        types.append(np.repeat(np.array([0, second], np.int32), [len(head), len(tail)]))
    lengths = [len(one) for one in ids]
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    none = [np.empty(0, np.int32)]
    return Encoded(np.concatenate(ids or none), np.concatenate(types or none), starts, cut)


def cut_longer(first: int, second: int, room: int) -> tuple[int, int]:
    """Returns how many tokens of two texts are kept; of equally long ones, the second is cut."""
    over = first + second - room
    if over <= 0:
        return first, second
    alone = min(over, abs(first - second))  # tokens that only the longer text loses
    both = over - alone
    if first > second:
        return first - alone - both // 2, second - (both - both // 2)
    return first - both // 2, second - alone - (both - both // 2)
