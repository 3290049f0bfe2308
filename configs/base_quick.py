"""BERT-base with positional heads and Muon, to learn at once. Its full run is not measured.

    bert-jax pretrain --config=base_quick --config.data.store=STORE --workdir=RUN

The architecture is that of `base` and exports as BertForPreTraining. Differences from `base`, which
has bfloat16 activations too: the initial values, the optimizer, its rates and schedule, and the
number of steps. docs/learning.md has what was measured on smaller models. There the same loss took
less than a third of the steps, so this run has 300,000.

Rates are those of the small models, carried over to this width: Muon's 0.02 as it is, since its
updates have the same spectral norm at every width; AdamW's in proportion to the embeddings' initial
spread (4e-3 at 0.08, 1e-3 at 0.02).
"""

from ml_collections import ConfigDict

from bert_jax.configs import base

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = base.get_config()
    learn_at_once(config)
    config.phases[0].steps = 300_000
    return config


def learn_at_once(config: ConfigDict) -> None:
    """Sets positional heads, Muon and their rates in a config of published values."""
    config.model.initializer = "positional_heads"
    config.optimizer.name = "muon"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.muon_scale = 20.0
    config.optimizer.b2 = 0.98
    config.optimizer.schedule = "fairseq"
