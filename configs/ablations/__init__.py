"""Ablations for `bert-jax ablate`: each file compares variants of one config."""

from typing import Final

from bert_jax.config.defaults import COUNTED_START
from bert_jax.config.schema import Config
from bert_jax.config.serialization import flatten, to_dict

_DEFAULTS = flatten(to_dict(Config()))
# The start of all runs, but where starts or architectures are compared: nothing is counted in the
# store beforehand, and layers start as published. What variants share hides a part of their
# differences, and counting is worth more to some.
RANDOM_WORDS: Final = {key: _DEFAULTS[key] for key in COUNTED_START if key != "model.initializer"}
