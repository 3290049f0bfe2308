"""Ablations for `bert-jax ablate`: each file compares variants of one config."""

from typing import Final

# The start of all runs: nothing is counted in the store beforehand, and layers start as published.
# What variants share hides a part of their differences, and counting is worth more to some.
RANDOM_WORDS: Final = {
    "model.word_initializer": "random",
    "model.output_bias_initializer": "zeros",
    "model.near_identity.head": False,
    "model.near_identity.feed_forward": 1.0,
}
