"""Masked language modelling: choose positions, keep their ids as labels, replace them.

`token` masking as released with BERT (google-research/bert at eedf571,
`create_pretraining_data.py:342-415` without whole words). Two traits worth knowing: the number of
predictions counts the three special tokens and rounds halves to even, and a random replacement is
drawn from the whole vocabulary, special and unused ids included.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from data_pipeline.draws import below, chance, compiled, draw, fold, threshold
from data_pipeline.errors import UserError


@dataclass(frozen=True)
class MaskingSpec:
    """max_predictions: slots of a row, and most predictions of an example. rate: share of an
    example's tokens to predict. mask_share, random_share: of those, the shares that become [MASK]
    and a random id; the rest keep theirs."""

    max_predictions: int
    mode: Literal["token", "whole_word", "ngram", "span"] = "token"
    rate: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1

    def __post_init__(self) -> None:
        if self.mode != "token":
            raise UserError(f'masking mode "{self.mode}" is not one of: token')
        if self.max_predictions < 1:
            raise UserError(f"max_predictions is {self.max_predictions}: at least 1 is needed")
        for name in ("rate", "mask_share", "random_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"{name} {getattr(self, name)} does not lie between 0 and 1")
        if self.mask_share + self.random_share > 1.0 + 1e-9:
            raise UserError(
                f"mask_share {self.mask_share} + random_share {self.random_share} exceed 1"
            )

    def predictions(self, seq_length: int) -> np.ndarray:
        """Predictions of an example of 0, 1, … seq_length tokens, specials included: int32."""
        return np.array(
            [
                min(self.max_predictions, max(1, round(length * self.rate)))
                for length in range(seq_length + 1)
            ],
            np.int32,
        )

    @property
    def mask_limit(self) -> np.uint64:
        return threshold(self.mask_share)

    @property
    def keep_limit(self) -> np.uint64:
        """The second draw of the original: among the tokens not masked, those that stay."""
        changed = round(1.0 - self.mask_share, 12)  # 1 - 0.8 must leave 0.2
        return threshold(max(0.0, 1.0 - self.random_share / changed) if changed else 1.0)


@compiled
def mask_tokens(
    key, ids, candidates, wanted, mask_id, vocab_size, mask_limit, keep_limit, positions, labels
):
    """Mask `wanted` of the candidate positions of one example, in place.

    key: uint64, this example's. ids: int32, the row. candidates: int [≥ wanted], positions in the
    row that may be masked; reordered. positions, labels: int32 [wanted], filled in the order of
    positions. Which candidates are taken, and what replaces them, come from two streams of the
    key, so that the draws of one do not depend on how far the other got.
    """
    shuffle, replace = fold(key, 0), fold(key, 1)
    n = 0
    for taken in range(wanted):
        # A Fisher-Yates shuffle from the front, only as far as it is needed.
        other = taken + below(draw(shuffle, taken), len(candidates) - taken)
        position = candidates[other]
        candidates[other] = candidates[taken]
        label = ids[position]
        slot = taken
        while slot > 0 and positions[slot - 1] > position:
            positions[slot], labels[slot] = positions[slot - 1], labels[slot - 1]
            slot -= 1
        positions[slot], labels[slot] = position, label
        masked = chance(draw(replace, n), mask_limit)
        n += 1
        if masked:
            ids[position] = mask_id
            continue
        kept = chance(draw(replace, n), keep_limit)
        n += 1
        if not kept:
            ids[position] = below(draw(replace, n), vocab_size)
            n += 1
