"""BERT-large.

    bert-jax pretrain --config=large --config.data.store=STORE --workdir=RUN

336,226,108 parameters with both heads, as in transformers' BertForPreTraining (checked by a test).
The training hyperparameters are the paper's (Devlin et al. 2018, appendix A.2) at sequence length
128. Not measured here.

Differences from the release: as in `base`, including bfloat16 activations. For the paper's sequence
lengths see `wiki_books_large`.
"""

from ml_collections import ConfigDict

from bert_jax.configs import base

SLICE = "v5e-64"


def get_config() -> ConfigDict:
    config = base.get_config()
    config.model.hidden_size = 1024
    config.model.num_hidden_layers = 24
    config.model.num_attention_heads = 16
    config.model.intermediate_size = 4096
    return config
