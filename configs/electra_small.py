r"""ELECTRA-small of the paper: a generator 64 wide replaces tokens, a model 256 wide tells which.

    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=vocab.txt --out=STORE
    bert-jax pretrain --config=electra_small --config.data.store=STORE --workdir=RUN
    bert-jax convert export --workdir=RUN --out=FOLDER

Clark et al. 2020 (arXiv 2003.10555), appendix A, and google-research/electra: Adam at 5e-4, warmup
10,000, batch 128 of 128 tokens, 1,000,000 steps; 19 positions drawn with replacement, 85 % of them
[MASK]; the loss is that of the generator plus 50 times that of the discriminator. 13,549,057
parameters of the discriminator, as in transformers' ElectraForPreTraining (checked by a test).
Published: 79.9 on the development sets of GLUE; 200,000 steps are "already useful" (README). Not
measured here. The released model of this name is `electra_small_plus_plus`.

Differences from the release: activations between layers are bfloat16 (release: float32). A position
that is drawn twice has one sample (release: the mean of two sampled ids), and becomes [MASK] or
stays by one draw (release: one for each time). An example is full sentences of one segment
(release: two segments, without a loss on them). Losses are divided by the counts of the global
batch.
"""

from ml_collections import ConfigDict

from bert_jax.configs import base

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = base.get_config()
    config.model.layout = "electra"
    config.model.embedding_size = 128
    config.model.hidden_size = 256
    config.model.num_attention_heads = 4
    config.model.intermediate_size = 1024
    config.model.generator.hidden_size = 64
    config.model.generator.num_attention_heads = 1
    config.model.generator.intermediate_size = 256
    config.data.pairing = "full_sentences"
    config.data.masking = "with_replacement"
    config.data.replaced_tokens = True
    config.data.mask_share, config.data.random_share = 0.85, 0.0
    config.phases[0].max_predictions = 19
    config.phases[0].batch_size, config.phases[0].steps = 128, 1_000_000
    config.optimizer.learning_rate = 5e-4
    return config
