"""Mask rates: 10 to 40 %, with BERT's 80/10/10 and with [MASK] alone.

    bert-jax ablate run --config=ablations/mask_rate --config.store=STORE --workdir=A --at_once=2

The demo's model on single documents, at equal real tokens; all variants are measured on 15 %, and
on 40 %. Wettig et al. 2023 (abstract): 40 % outperforms 15 % for BERT-large on GLUE and SQuAD, and
80 % preserves 95 % of the fine-tuned performance. Not measured here.
"""

from ml_collections import ConfigDict

from bert_jax.config.ablation import ablation
from bert_jax.configs.ablations import RANDOM_WORDS

ONLY_MASK = {"data.mask_share": 1.0, "data.random_share": 0.0}


def rate(share: float) -> dict[str, float | int]:
    """Returns the changes for a share of the tokens, in examples of 64."""
    return {"data.mask_rate": share, "phases[0].max_predictions": round(64 * share) + 1}


def get_config() -> ConfigDict:
    return ablation(
        base="demo",
        changes={**RANDOM_WORDS, "phases[0].steps": 1500, "data.pairing": "single"},
        variants={
            "rate 15": {},
            "rate 10": rate(0.1),
            "rate 25": rate(0.25),
            "rate 40": rate(0.4),
            "rate 15, mask only": ONLY_MASK,
            "rate 40, mask only": {**rate(0.4), **ONLY_MASK},
        },
        equal="real_tokens",
        measures=("single/token", "single/token@0.4", "single/span"),
        primary="single/token",
    )
