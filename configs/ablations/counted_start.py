r"""Counting before the first step, against random words.

    bert-jax ablate run --config=ablations/counted_start --config.store=STORE \
        --workdir=A --at_once=2 --cpu_devices=1

`wiki_books_small` for 600 steps, at equal steps; both variants have positional heads and Muon, and
differ in initial values alone. With three seeds the counted start is ahead by 1.24 nats (1.20 to
1.29) on Wikipedia and books (docs/learning.md, "Counting before the first step").
"""

from ml_collections import ConfigDict

from bert_jax.config.ablation import ablation
from bert_jax.configs.ablations import RANDOM_WORDS


def get_config() -> ConfigDict:
    return ablation(
        base="wiki_books_small",
        changes={"phases[0].steps": 600, "optimizer.warmup_steps": 60},
        variants={"random words": RANDOM_WORDS, "counted start": {}},
        seeds=(0, 1, 2),
        equal="steps",
        measures=("nsp/token", "single/token"),
        primary="nsp/token",
    )
