"""A small BERT that `bert-jax demo` trains on two CPU cores in a few minutes.

    bert-jax demo

The demo fills in the store, with a vocabulary of 8,192. The model is a BERT; its initial values and
its optimizer are not the paper's, with which a model of this size stays near the unigram loss for
thousands of steps.
"""

from ml_collections import ConfigDict

from bert_jax.config.defaults import COUNTED_START
from bert_jax.configs import tiny


def get_config() -> ConfigDict:
    config = tiny.get_config()
    config.update_from_flattened_dict(COUNTED_START)
    config.log_every_steps = 25
    config.model.num_attention_heads = 4  # tokens at -1, +1, -2, +2
    config.model.max_position_embeddings = 128
    config.model.initializer_range = 0.08  # 1/sqrt(width); 0.02 learns far more slowly at first
    config.model.hidden_dropout_prob = 0.0
    config.model.attention_probs_dropout_prob = 0.0
    config.phases[0].steps = 800
    config.phases[0].seq_length = 64
    config.phases[0].max_predictions = 11
    config.optimizer.name = "muon"
    config.optimizer.learning_rate = 4e-3
    config.optimizer.muon_scale = 5.0
    config.optimizer.b2 = 0.98
    config.optimizer.schedule = "fairseq"
    config.evaluation.every_steps = 250
    config.evaluation.fills = 10
    config.checkpoint.every_steps = 50
    return config
