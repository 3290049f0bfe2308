"""The masking of a phase, and its precomputed form for compiled code."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert_jax.data_pipeline.masking.masking_settings import MODES, MaskingSettings
from bert_jax.data_pipeline.masking.mode import Mode
from bert_jax.data_pipeline.masking.replace import cumulative_limits
from bert_jax.data_pipeline.random.counter_rng import threshold


class Rule(NamedTuple):
    """A `MaskingSpec` for one vocabulary, precomputed for compiled code."""

    budgets: np.ndarray  # int32, maximum predictions by size; may exceed the maskable tokens
    limits: np.ndarray  # uint64, what the mode draws against, see its file
    mask_id: int
    vocab_size: int
    mask_limit: np.uint64  # first draw below this: [MASK]
    keep_limit: np.uint64  # second draw, of a token not masked, below this: unchanged
    random_limit: np.uint64  # the single draw of a span below this, and not masked: random
    id_limits: np.ndarray  # uint64 [V], cumulative: random ids; empty if uniform
    word_starts: np.ndarray  # uint8 [V], see `Tokenizer.word_starts`; empty if not needed
    id_weights: np.ndarray  # int64 [V], see `Mode`; empty if not needed
    counts_specials: bool  # see `Mode`, as the next
    masks_specials: bool


@dataclass(frozen=True)
class MaskingSpec(MaskingSettings):
    """The masking of a phase.

    Attributes:
        max_predictions: the maximum of an example.
        mask_rate_end: what the rate changes to, linearly from `mask_rate`, over `steps`; None: it
            is constant.
    """

    max_predictions: int
    mask_rate_end: float | None = None
    steps: int = 1

    @property
    def mode(self) -> Mode:
        mode: Mode = MODES[self.masking]
        return mode

    def at(self, step: int) -> "MaskingSpec":
        """Returns the masking of a step of the phase, with the rate of that step."""
        if self.mask_rate_end is None:
            return self
        share = min(step / self.steps, 1.0)
        rate = self.mask_rate + (self.mask_rate_end - self.mask_rate) * share
        return dataclasses.replace(self, mask_rate=rate, mask_rate_end=None)

    def predictions(self, seq_length: int) -> np.ndarray:
        """Returns the maximum predictions of an example of 0, 1, … seq_length tokens, specials
        included, in any step: int32 [seq_length + 1]."""
        ends = (self.at(step).budgets(seq_length) for step in (0, self.steps))
        longest = np.maximum(*ends)
        if self.mode.counts_specials:
            return longest
        # At least [CLS] and one [SEP] are not counted.
        return np.concatenate([np.zeros(2, np.int32), longest])[: seq_length + 1]

    def budgets(self, largest: int) -> np.ndarray:
        """Returns the maximum predictions of an example of 0 … `largest` tokens: int32."""
        wanted = (self.mode.wanted(self.mask_rate, size) for size in range(largest + 1))
        return np.array([min(self.max_predictions, number) for number in wanted], np.int32)

    def rule(
        self,
        mask_id: int,
        vocab_size: int,
        largest: int,
        *,
        word_starts: np.ndarray | None = None,
        token_counts: np.ndarray | None = None,
        not_drawn: Sequence[int] = (),
    ) -> Rule:
        """Returns the rule for examples of up to `largest` tokens.

        Args:
            word_starts: [V], see `Tokenizer.word_starts`; required if the mode needs words.
            token_counts: [V], occurrences of each id in the training text, required for unigram
                random tokens and if the mode has `id_weights`.
            not_drawn: the special ids except [MASK], required if the mode draws none of them or
                gives them no weight.

        Raises:
            ValueError: a required argument is missing or has the wrong length.
        """
        starts = np.zeros(0, np.uint8)
        if self.mode.needs_words:
            if word_starts is None or len(word_starts) != vocab_size:
                raise ValueError(f"masking {self.masking} needs {vocab_size} word_starts")
            starts = np.array(word_starts, np.uint8)
        budgets = self.budgets(largest)
        changed = round(1.0 - self.mask_share, 12)  # 1 - 0.8 must leave 0.2
        return Rule(
            budgets=budgets,
            limits=self.mode.limits(self, budgets),
            mask_id=mask_id,
            vocab_size=vocab_size,
            mask_limit=threshold(self.mask_share),
            keep_limit=threshold(max(0.0, 1.0 - self.random_share / changed) if changed else 1.0),
            random_limit=threshold(min(1.0, round(self.mask_share + self.random_share, 12))),
            id_limits=self._id_limits(vocab_size, token_counts, not_drawn),
            word_starts=starts,
            id_weights=self._id_weights(mask_id, vocab_size, token_counts, not_drawn),
            counts_specials=self.mode.counts_specials,
            masks_specials=self.mode.masks_specials,
        )

    def _id_weights(
        self,
        mask_id: int,
        vocab_size: int,
        token_counts: np.ndarray | None,
        not_drawn: Sequence[int],
    ) -> np.ndarray:
        if self.mode.id_weights is None:
            return np.zeros(0, np.int64)
        what = f"masking {self.masking} needs"
        weights = self.mode.id_weights(self, _checked_counts(what, vocab_size, token_counts))
        if not self.mode.masks_specials:
            self._check_specials(not_drawn)
            weights[[*not_drawn, mask_id]] = 0
        return weights

    def _id_limits(
        self, vocab_size: int, token_counts: np.ndarray | None, not_drawn: Sequence[int]
    ) -> np.ndarray:
        weights = np.ones(vocab_size, np.int64)
        if self.random_tokens == "unigram":
            weights = _checked_counts("unigram random tokens need", vocab_size, token_counts)
        elif self.mode.draws_specials:
            return np.zeros(0, np.uint64)
        if not self.mode.draws_specials:
            self._check_specials(not_drawn)
            weights[list(not_drawn)] = 0
        return cumulative_limits(weights.tolist())

    def _check_specials(self, not_drawn: Sequence[int]) -> None:
        if not len(not_drawn):
            raise ValueError(f"masking {self.masking} needs not_drawn, the special ids")


def _checked_counts(what: str, vocab_size: int, token_counts: np.ndarray | None) -> np.ndarray:
    """Returns a copy of the counts; ValueError if they are missing or of another vocabulary."""
    if token_counts is None or len(token_counts) != vocab_size or not np.sum(token_counts):
        raise ValueError(f"{what} token_counts of {vocab_size} ids")
    return np.array(token_counts, np.int64)
