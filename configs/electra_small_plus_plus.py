r"""ELECTRA-small++, the released one: rows of 512 tokens, a generator as large as the model.

    bert-jax pretrain --config=electra_small_plus_plus --config.data.store=STORE --workdir=RUN

`electra_small` at length 512 with 79 predictions, a generator of the full width and 4,000,000
steps, on more text than Wikipedia and books (README of google-research/electra). Published: 77.4
on the test sets of GLUE; not measured here.

Differences from the release: those of `electra_small`; activations between layers are bfloat16.
"""

from ml_collections import ConfigDict

from bert_jax.config.defaults import config_dict
from bert_jax.config.generator_settings import GeneratorConfig
from bert_jax.configs import electra_small

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = electra_small.get_config()
    config.model.generator = config_dict(GeneratorConfig())
    config.phases[0].seq_length, config.phases[0].max_predictions = 512, 79
    config.phases[0].steps = 4_000_000
    return config
