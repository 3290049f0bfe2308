"""Values that a model gives: fills of masks, predictions of a task, tokens of a text."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Fill:
    """A predicted vocabulary entry for a mask; "##" marks the inside of a word (WordPiece), "▁"
    (SentencePiece) and "Ġ" (byte-level BPE) its start."""

    token: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The class of a text with its probability, or its score; the other is None."""

    label: str | None
    probability: float | None
    score: float | None = None


@dataclass(frozen=True)
class Tokens:
    """A text as the model reads it, cut to its longest row.

    Attributes:
        ids: with [CLS] and [SEP].
        spans: int32 [tokens - 2, 2], of the tokens between [CLS] and [SEP]: the first character in
            the text, and the one after the last. None if they were not asked for.
        cut: number of tokens that were cut off.
    """

    ids: list[int]
    spans: np.ndarray | None
    cut: int
