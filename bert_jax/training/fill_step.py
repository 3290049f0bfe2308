"""Guesses for one word of each row, as a part of the evaluation step.

No program of its own: compiling one would take longer than all its calls in a short run.
"""

from typing import Final

import jax

from bert_jax.config.schema import Config
from bert_jax.objectives.known_objectives import learned_by
from bert_jax.objectives.masked_lm import MASKED_LM

FILLS: Final = "fills"  # name of the guesses among what an evaluation step returns
_GUESSES = 3  # for each row


def has_fills(config: Config) -> bool:
    """Returns whether evaluations of a run guess words: it asks for it, and predicts masked
    tokens."""
    return bool(config.evaluation.fills) and MASKED_LM.name in learned_by(config)


def guesses(logits_BxPxV: jax.Array, entries: int) -> tuple[jax.Array, jax.Array]:
    """Returns probabilities and ids [B, 3], in descending order, of the most probable of the first
    `entries` of the vocabulary for the first prediction slot of each row."""
    probabilities_BxV = jax.nn.softmax(logits_BxPxV[:, 0, :entries])
    values, ids = jax.lax.top_k(probabilities_BxV, _GUESSES)
    return values, ids
