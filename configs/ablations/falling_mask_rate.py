r"""Mask rates: 15 %, and 30 % that falls linearly to 15 %.

    bert-jax ablate run --config=ablations/falling_mask_rate --config.store=STORE \
        --workdir=A --at_once=2

`wiki_books_small` for 600 steps, at equal steps; both variants are measured on 15 %. Ankner et al.
2023 (arXiv 2305.15096, abstract) report for BERT-base that such a rate gives 0.46 % more on GLUE
than 15 %, and that it reaches the same GLUE in 1.89 times fewer steps. Here the falling rate is
ahead by 0.112 nat (0.106 to 0.119), three seeds, for 25 % more FLOPs (docs/configs.md, "Masks and
mixtures by phase").
"""

from ml_collections import ConfigDict

from bert_jax.config.ablation import ablation
from bert_jax.configs.ablations import RANDOM_WORDS

FALLING = {"phases[0].mask_rate": 0.3, "phases[0].mask_rate_end": 0.15}


def get_config() -> ConfigDict:
    return ablation(
        base="wiki_books_small",
        changes={**RANDOM_WORDS, "phases[0].steps": 600},
        variants={"15 %": {}, "30 to 15 %": FALLING},
        seeds=(0, 1, 2),
        equal="steps",
        measures=("nsp/token", "single/token"),
        primary="nsp/token",
    )
