r"""A BERT with 4 layers and width 256 on Wikipedia and books: under two hours on two CPU cores.

    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=vocab.txt --out=STORE
    bert-jax pretrain --config=wiki_books_small --config.data.store=STORE \
        --workdir=RUN --cpu_devices=2

The size of the released BERT-mini (google-research/bert, README of 11 March 2020). Measured on two
of 4 Intel Xeon vCPUs: 104 minutes, held-out MLM loss 6.26 (unigram baseline: 7.02), next-sentence
accuracy 71.7 % (baseline: 58.8 %); docs/results.md has the curves.
"""

from ml_collections import ConfigDict

from bert_jax.configs import tiny


def get_config() -> ConfigDict:
    config = tiny.get_config()
    config.log_every_steps = 20
    config.model.hidden_size = 256
    config.model.num_hidden_layers = 4
    config.model.num_attention_heads = 4
    config.model.intermediate_size = 1024
    config.model.initializer_range = 0.06  # 1/sqrt(width); 0.02 learns far more slowly at first
    config.model.hidden_dropout_prob = 0.0  # no text is seen twice in a short run
    config.model.attention_probs_dropout_prob = 0.0
    config.phases[0].steps = 6000
    config.optimizer.learning_rate = 2e-4  # at 5e-4 the loss stays at the unigram baseline
    config.optimizer.warmup_steps = 300
    config.evaluation.batches = 16
    return config
