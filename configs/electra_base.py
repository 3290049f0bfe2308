r"""ELECTRA-base: a generator 256 wide replaces tokens, a model of BERT-base's size tells which.

    bert-jax pretrain --config=electra_base --config.data.store=STORE --workdir=RUN

`electra_small` with BERT-base's sizes, tables 768 wide, batch 256 of 512 tokens, 79 predictions,
2e-4 and 766,000 steps (Clark et al. 2020, appendix A; google-research/electra). 109,483,009
parameters of the discriminator, as in transformers' ElectraForPreTraining (checked by a test).
Published: 85.1 on the development sets of GLUE, 82.7 on the test sets; not measured here.

Differences from the release: those of `electra_small`; activations between layers are bfloat16.

Hours by the TPU compiler, layers in a loop (docs/compile.md): 24.3 on v5e-16.
"""

from ml_collections import ConfigDict

from bert_jax.configs import electra_small

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = electra_small.get_config()
    config.model.embedding_size = 0
    config.model.hidden_size = 768
    config.model.num_attention_heads = 12
    config.model.intermediate_size = 3072
    config.model.generator.hidden_size = 256
    config.model.generator.num_attention_heads = 4
    config.model.generator.intermediate_size = 1024
    config.phases[0].seq_length, config.phases[0].max_predictions = 512, 79
    config.phases[0].batch_size, config.phases[0].steps = 256, 766_000
    config.optimizer.learning_rate = 2e-4
    return config
