"""Settings of initial values."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated, Any, Final

from bert_jax.config.ranges import Amount, Layers, Positive
from bert_jax.data_pipeline.settings import Share, Within
from bert_jax.errors import UserError

# Keys that `model.initializer = "published"` sets back.
_SET_BACK: Final = (
    "model.word_initializer", "model.output_bias_initializer", "model.near_identity.",
)  # fmt: skip
# Sections that one start alone reads: the key that chooses it, and its value.
_READ_BY: Final = {
    "model.positional_heads.": ("model.initializer", "positional_heads"),
    "model.cooccurrence.": ("model.word_initializer", "cooccurrence"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PositionalHeadsConfig:
    """The start with `initializer = "positional_heads"`; see model/positional_heads.py."""

    layers: Layers = 1  # the first layers, whose heads start at their neighbours
    sharpness: Positive = 9.5  # score of the neighbour, before the softmax
    noise: Amount = 0.25  # random part of these queries and keys, 1 = as published
    table: Positive = 1.5  # size of the position table, in units of initializer_range
    # size of what no head of the first layers reads of the table, relative to the rest
    unread: Share = 1.0
    # Values and outputs of the first layer start from the PMI of words at each head's offset, times
    # this; 0: from random values.
    pmi: Amount = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CooccurrenceConfig:
    """The vectors with `word_initializer = "cooccurrence"`; see
    data_pipeline/analysis/word_vectors.py."""

    window: Annotated[int, Within(1, 100)] = 4  # tokens on each side
    smoothing: Share = 0.75  # exponent of the counts of contexts
    exponent: Share = 0.5  # of the singular values


@dataclasses.dataclass(frozen=True, kw_only=True)
class NearIdentityConfig:
    """A start with which the vector of a word reaches the output nearly unchanged.

    At random values each branch of a layer adds noise to its input, and the head is a random map,
    so that the output hardly depends on what the vectors of words say of one another.
    Related: Fixup (Zhang et al. 2019, arXiv 1901.09321) and ReZero (Bachlechner et al. 2020, arXiv
    2003.04887), whose branches start at or near zero.
    """

    # The dense layer of the masked-token head, and that from narrow tables, start as the identity.
    head: bool = False
    feed_forward: Amount = 1.0  # factor of the random values of each feed-forward output
    attention: Amount = 1.0  # the same of each attention output


def check_start(config: Any, changes: Mapping[str, Any]) -> None:
    """Raises UserError for a change of initial values that `model.initializer` has set back, or of
    a start that is not chosen, unless the choice was asked for, too.

    Args:
        config: a `Config` with these changes.
        changes: the value that was asked for, by key.
    """
    for key, value in changes.items() if "model.initializer" not in changes else ():
        if key.startswith(_SET_BACK) and value != _value(config, key):
            start = config.model.initializer
            raise UserError(_no_effect(key, value, "model.initializer", start, "random"))
    for section, (chooser, needed) in _READ_BY.items():
        start = _value(config, chooser)
        # New entries of a vocabulary count, too.
        if chooser in changes or needed in (start, config.init_entries):
            continue
        usual = type(_value(config, section.removesuffix(".")))()
        for key, value in changes.items():
            if key.startswith(section) and value != getattr(usual, key.removeprefix(section)):
                raise UserError(_no_effect(key, value, chooser, start, needed))


def _value(config: Any, key: str) -> Any:
    return functools.reduce(getattr, key.split("."), config)


def _no_effect(key: str, value: object, chooser: str, start: str, needed: str) -> str:
    return (
        f'config.{key}={value} has no effect with config.{chooser}="{start}"; set that to {needed}'
    )
