"""BERT-large with what lets small models learn at once. Not measured at this size.

    bert-jax pretrain --config=large_quick --config.data.store=STORE --workdir=RUN

Differences from `large`, which has bfloat16 activations too: those of `base_quick` from `base`.
"""

from ml_collections import ConfigDict

from bert_jax.configs import base_quick, large

SLICE = "v5e-64"


def get_config() -> ConfigDict:
    config = large.get_config()
    base_quick.learn_at_once(config)
    config.phases[0].steps = 300_000
    return config
