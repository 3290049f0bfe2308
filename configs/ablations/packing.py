"""Rows of one example each against packed rows, at equal real tokens.

    bert-jax ablate run --config=ablations/packing --config.store=STORE --workdir=A --at_once=2

The demo's model with sentence pairs. A packed batch of as many rows has more real tokens, so it is
trained for fewer steps: a consequence of packing, so that the verdict is still on packing. Not
measured here.
"""

from ml_collections import ConfigDict

from bert_jax.config.ablation import ablation
from bert_jax.configs.ablations import RANDOM_WORDS


def get_config() -> ConfigDict:
    return ablation(
        base="demo",
        changes={**RANDOM_WORDS, "phases[0].steps": 1500, "data.short_seq_prob": 0.5},
        variants={
            "padded": {},
            "packed": {"phases[0].examples_per_row": 8},
        },
        equal="real_tokens",
        consequences=("steps",),
        measures=("nsp/token", "single/token", "single/span"),
        primary="nsp/token",
    )
