"""Masking settings, and their precomputed form for compiled code."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, NamedTuple

import numpy as np

from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.random.counter_rng import threshold

MODES: Final = ("token", "whole_word", "ngram", "span", "roberta")
TOKEN, WHOLE_WORD, NGRAM, SPAN, ROBERTA = range(len(MODES))
SPAN_TARGETS: Final = 15  # tokens per span predicted from its boundaries (--max-pair-targets)
_OF_WORDS: Final = ("whole_word", "ngram", "span")


class Rule(NamedTuple):
    """A `MaskingSpec` for one vocabulary, precomputed for compiled code."""

    mode: int  # index into MODES
    budgets: np.ndarray  # int32, maximum predictions by size of the example, see `budgets`
    fewer_limits: np.ndarray  # uint64, by size: P(one fewer); empty unless `roberta`
    mask_id: int
    vocab_size: int
    mask_limit: np.uint64  # first draw below this: [MASK]
    keep_limit: np.uint64  # second draw, of a token not masked, below this: unchanged
    random_limit: np.uint64  # the single draw of a span below this, and not masked: random
    length_limits: np.ndarray  # uint64, cumulative: words of an n-gram or a span, from 1
    id_limits: np.ndarray  # uint64 [V], cumulative: random ids; empty if uniform
    word_starts: np.ndarray  # bool [V]: the entry begins a word; empty if not needed


@dataclass(frozen=True)
class MaskingSpec:
    """Masking settings.

    Attributes:
        max_predictions: maximum predictions of an example.
        mode: how positions are selected, see the package's docstring.
        rate: fraction of an example's tokens to predict.
        mask_share, random_share: fractions of these that become [MASK] and a random id; the rest
            stay unchanged.
        max_ngram: words of the longest n-gram.
        span_success, max_span: span lengths in words are geometric with this probability of ending
            after each word, up to max_span.
        random_tokens: random ids are uniform over the vocabulary ("uniform", special and unused ids
            included, as in BERT), or follow the frequencies in the training text ("unigram", as in
            SpanBERT); in mode "roberta" never a special id other than [MASK].
    """

    max_predictions: int
    mode: Literal["token", "whole_word", "ngram", "span", "roberta"] = "token"
    rate: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    max_ngram: int = 3
    span_success: float = 0.2
    max_span: int = 10
    random_tokens: Literal["uniform", "unigram"] = "uniform"

    def __post_init__(self) -> None:
        for name, choices in (("mode", MODES), ("random_tokens", ("uniform", "unigram"))):
            if getattr(self, name) not in choices:
                label = "masking mode" if name == "mode" else name
                raise UserError(
                    f'{label} "{getattr(self, name)}" is not one of: {", ".join(choices)}'
                )
        for name in ("max_predictions", "max_ngram", "max_span"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; must be at least 1")
        for name in ("rate", "mask_share", "random_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"{name} {getattr(self, name)} is not between 0 and 1")
        if not 0.0 < self.span_success < 1.0:
            raise UserError(
                f"span_success {self.span_success} is not between 0 and 1: it is the probability "
                "that a span ends after each word"
            )
        if self.mask_share + self.random_share > 1.0 + 1e-9:
            raise UserError(
                f"mask_share {self.mask_share} + random_share {self.random_share} exceeds 1"
            )

    @property
    def needs_words(self) -> bool:
        """Whether the mode needs to know where words begin."""
        return self.mode in _OF_WORDS

    def predictions(self, seq_length: int) -> np.ndarray:
        """Returns the maximum predictions of an example of 0, 1, … seq_length tokens, specials
        included: int32 [seq_length + 1]."""
        if self.mode != "span":
            return self.budgets(seq_length)
        longest = self.budgets(seq_length)  # at least [CLS] and one [SEP] are not counted
        return np.concatenate([np.zeros(2, np.int32), longest])[: seq_length + 1]

    def budgets(self, largest: int) -> np.ndarray:
        """Returns the maximum predictions of an example of 0 … `largest` tokens: int32.

        Tokens include specials, and predictions round halves to even and are at least 1
        (create_pretraining_data.py:369 of BERT; in ALBERT's they are 0 if the rate is 0). Spans
        count tokens without specials, and round up (masking.py:99 of SpanBERT). RoBERTa rounds
        randomly; here up.
        """
        return np.array([min(self.max_predictions, self._wanted(n)) for n in range(largest + 1)],
                        np.int32)  # fmt: skip

    def _wanted(self, size: int) -> int:
        if self.mode in ("span", "roberta"):
            return math.ceil(size * self.rate)
        if self.mode == "ngram" and self.rate == 0.0:
            return 0
        return max(1, round(size * self.rate))

    def _fewer(self, size: int) -> np.uint64:
        """Returns P(rate·size is rounded down); 0 if `max_predictions` caps it anyway."""
        up = self._wanted(size)
        return threshold(up - size * self.rate if up <= self.max_predictions else 0.0)

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
            word_starts: bool [V], required if `needs_words`.
            token_counts: [V], occurrences of each id in the training text, required for unigram
                random tokens.
            not_drawn: the special ids except [MASK], required by "roberta".

        Raises:
            ValueError: a required argument is missing or has the wrong length.
        """
        starts = np.zeros(0, bool)
        if self.needs_words:
            if word_starts is None or len(word_starts) != vocab_size:
                raise ValueError(f"masking mode {self.mode} needs word_starts: {vocab_size} bools")
            starts = np.array(word_starts, bool)
        changed = round(1.0 - self.mask_share, 12)  # 1 - 0.8 must leave 0.2
        return Rule(
            mode=MODES.index(self.mode),
            budgets=self.budgets(largest),
            fewer_limits=np.array(
                [self._fewer(n) for n in range(largest + 1)] if self.mode == "roberta" else [],
                np.uint64,
            ),
            mask_id=mask_id,
            vocab_size=vocab_size,
            mask_limit=threshold(self.mask_share),
            keep_limit=threshold(max(0.0, 1.0 - self.random_share / changed) if changed else 1.0),
            random_limit=threshold(min(1.0, round(self.mask_share + self.random_share, 12))),
            length_limits=cumulative_limits(self.length_weights()),
            id_limits=self._id_limits(vocab_size, token_counts, not_drawn),
            word_starts=starts,
        )

    def _id_limits(
        self, vocab_size: int, token_counts: np.ndarray | None, not_drawn: Sequence[int]
    ) -> np.ndarray:
        weights = np.ones(vocab_size, np.int64)
        if self.random_tokens == "unigram":
            if token_counts is None or len(token_counts) != vocab_size or not np.sum(token_counts):
                raise ValueError(f"unigram random tokens need token_counts of {vocab_size} ids")
            weights = np.array(token_counts, np.int64)
        elif self.mode != "roberta":
            return np.zeros(0, np.uint64)
        if self.mode == "roberta":
            if not len(not_drawn):
                raise ValueError("masking mode roberta needs not_drawn, the special ids")
            weights[list(not_drawn)] = 0
        return cumulative_limits(weights.tolist())

    def length_weights(self) -> list[Fraction]:
        """Returns the unnormalized probabilities of n-grams or spans of 1, 2, … words."""
        if self.mode == "span":
            end = Fraction(self.span_success)
            return [end * (1 - end) ** n for n in range(self.max_span)]
        return [Fraction(1, n) for n in range(1, self.max_ngram + 1)]


def cumulative_limits(weights: Sequence[Fraction | int]) -> np.ndarray:
    """Returns uint64 [n] limits for which `drawn` returns i with probability weights[i] / sum.

    Exact to 2**-63; an index of weight 0 is never drawn.
    """
    total, so_far = sum(weights), Fraction(0)
    limits = np.empty(len(weights), np.uint64)
    for i, weight in enumerate(weights):
        so_far += weight
        limits[i] = -(-so_far * 2**63 // total)
    return limits
