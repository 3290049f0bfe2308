"""What `bert-jax demo` trains: a small BERT for two CPU cores and a few minutes.

    bert-jax demo

The demo fills in the store and the vocabulary size.
"""

from ml_collections import ConfigDict

from configs import tiny


def get_config() -> ConfigDict:
    config = tiny.get_config()
    config.model.vocab_size = 8192
    config.model.max_position_embeddings = 128
    config.phases[0].steps = 1200
    config.evaluation.every_steps = 200
    config.checkpoint.every_steps = 50
    return config
