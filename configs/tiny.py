"""A model with 2 layers and width 128, for quick experiments on any machine.

    bert-jax pretrain --config=tiny --config.data.store=STORE --workdir=RUN

The size of the released BERT-tiny (google-research/bert, README of 11 March 2020), a short
schedule, float32.
"""

from ml_collections import ConfigDict

from bert_jax.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.log_every_steps = 10
    config.model.hidden_size = 128
    config.model.num_hidden_layers = 2
    config.model.num_attention_heads = 2
    config.model.intermediate_size = 512
    config.model.pad_vocab_to_multiple_of = 1
    config.phases[0].steps = 1000
    config.phases[0].batch_size = 32
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 100
    config.compute.dtype = "float32"
    config.compute.shard_optimizer = False
    config.checkpoint.every_steps = 200
    config.evaluation.every_steps = 200
    config.evaluation.batches = 8
    return config
