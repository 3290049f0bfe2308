"""Published initial values against positional heads, with AdamW and with Muon.

    bert-jax ablate run --config=ablations/start --config.store=STORE --workdir=A --at_once=2

The demo's model at equal steps; docs/learning.md measures the same choices on other text. Not
measured here.
"""

from ml_collections import ConfigDict

from bert_jax.config.ablation import ablation
from bert_jax.configs.ablations import RANDOM_WORDS

ADAMW = {"optimizer.name": "adamw", "optimizer.learning_rate": 2e-3}


def get_config() -> ConfigDict:
    return ablation(
        base="demo",
        changes={**RANDOM_WORDS, "phases[0].steps": 1500},
        variants={
            "published, AdamW": {"model.initializer": "published", **ADAMW},
            "published, Muon": {"model.initializer": "published"},
            "positional heads, AdamW": ADAMW,
            "positional heads, Muon": {},
        },
        equal="steps",
        measures=("single/token", "single/span"),
        primary="single/token",
    )
