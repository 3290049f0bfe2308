"""BERT-large.

    bert-jax pretrain --config=large --config.data.store=STORE --workdir=RUN

336,226,108 parameters with both heads, as transformers' BertForPreTraining counts them (checked by
a test). The training values are the paper's (Devlin et al. 2018, appendix A.2) at sequence length
128. Not measured here.

Other than there: as in `base`, activations in bfloat16 among it; the lengths of the paper are those
of `wiki_books_large`.
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
