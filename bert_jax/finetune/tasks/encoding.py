"""Texts as a model reads them: `[CLS] text [SEP]` or `[CLS] text [SEP] text [SEP]`.

Of a pair, the tokenizer says what is between the texts, such as RoBERTa's two separators, and the
token types: see `Tokenizer.frame`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from bert_jax.config.schema import ModelConfig
from bert_jax.convert.layouts.known_layouts import positions_after_pad
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError

Draw = Callable[[np.uint64, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Encoded:
    """The tokens of E examples of C sequences each.

    Attributes:
        ids, types: int32, all sequences after one another, those of an example together.
        starts: int64 [E * C + 1], where each sequence begins.
        cut: number of sequences that were longer than the limit.
        sequences: C, of an example.
    """

    ids: np.ndarray
    types: np.ndarray
    starts: np.ndarray
    cut: int
    sequences: int = 1

    @property
    def examples(self) -> int:
        return (len(self.starts) - 1) // self.sequences

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence, int64 [E * C]."""
        return np.diff(self.starts)

    def by_sequence(self) -> Iterator[np.ndarray]:
        """Yields the ids of each sequence."""
        for first, end in pairwise(self.starts.tolist()):
            yield self.ids[first:end]


@dataclass(frozen=True)
class Targets:
    """Labels, keyed by batch array name; see `ExampleBatches.batch`.

    Attributes:
        of_tokens: a value for each token of all sequences after one another.
        of_examples: a value for each example.
        positions: of a token in each sequence, counted from its first one; in a batch counted from
            the first one of the row.
        drawn: functions that draw a value for each token of a sequence, int32 [n], other ones in
            every epoch, from a key, uint64, and its ids [n].
    """

    of_tokens: Mapping[str, np.ndarray] = field(default_factory=dict)
    of_examples: Mapping[str, np.ndarray] = field(default_factory=dict)
    positions: Mapping[str, np.ndarray] = field(default_factory=dict)
    drawn: Mapping[str, Draw] = field(default_factory=dict)

    def __or__(self, other: "Targets") -> "Targets":
        return Targets(
            {**self.of_tokens, **other.of_tokens},
            {**self.of_examples, **other.of_examples},
            {**self.positions, **other.positions},
            {**self.drawn, **other.drawn},
        )


def joined(
    ids: Sequence[np.ndarray], types: Sequence[np.ndarray] | None = None, *, cut: int = 0
) -> Encoded:
    """Returns examples after one another; types: of each, by default 0."""
    starts = np.concatenate([[0], np.cumsum([len(one) for one in ids], dtype=np.int64)])
    flat = np.concatenate([np.empty(0, np.int32), *ids])
    kinds = np.zeros(len(flat), np.int32) if types is None else np.concatenate([flat[:0], *types])
    return Encoded(flat, kinds, starts.astype(np.int64), cut)


def encode(
    tokenizer: Tokenizer, model: ModelConfig, texts: Sequence[tuple[str, ...]], limit: int
) -> Encoded:
    """Returns the tokens of examples of one or two texts, at most `limit` each.

    Of a pair that is too long, the longer text loses its last token, again and again, as in
    `_truncate_seq_pair` of run_classifier.py.
    """
    special, frame = tokenizer.special, tokenizer.frame
    typed = model.type_vocab_size > 1
    flat = tokenizer.encode_texts([text for pair in texts for text in pair])
    parts = iter(flat)
    ids: list[np.ndarray] = []
    types: list[np.ndarray] = []
    cut = 0
    for pair in texts:
        first, *other = (next(parts) for _ in pair)
        room = limit - 2 - (len(frame.between) if other else 0)
        sizes = len(first), len(other[0]) if other else 0
        kept = cut_longer(*sizes, room) if other else (min(sizes[0], room), 0)
        cut += kept != sizes
        head = [special.cls, *first[: kept[0]].tolist()]
        tail = [*frame.between, *other[0][: kept[1]].tolist()] if other else []
        ids.append(np.array([*head, *tail, special.sep], np.int32))
        types.append(frame.types(*kept) * typed if other else np.zeros(len(head) + 1, np.int32))
    return joined(ids, types, cut=cut)


def check_no_padding(
    texts: Iterable[Sequence[int] | np.ndarray],
    tokenizer: Tokenizer,
    model: ModelConfig,
    pad: int | None = None,
) -> None:
    """Raises UserError if the tokens of a text have the padding id and the model's positions start
    after it: transformers gives it a row of the weights there that our models do not have.

    pad: of the model; by default that of the tokenizer.
    """
    if not positions_after_pad(model):
        return
    pad = tokenizer.special.pad if pad is None else pad
    for ids in texts:
        if pad in ids:
            place = [*ids].index(pad)
            near = tokenizer.decode([*ids][max(0, place - 8) : place + 8])
            raise UserError(
                f"{near!r}: {tokenizer.token(pad)} in a text has a position of its own in RoBERTa, "
                "which bert-jax has not; leave it out, or read it as text with split_special_tokens"
            )


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
