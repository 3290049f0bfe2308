r"""ALBERT-base v2: one layer applied twelve times, word tables 128 wide, sentence order.

    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=spiece.model --out=STORE
    bert-jax pretrain --config=albert_base --config.data.store=STORE --workdir=RUN

Lan et al. 2019 (arXiv 1909.11942) and the README of google-research/albert: LAMB at 0.00176, batch
4,096 at length 512, 125,000 steps, warmup 3,125; masks of n-grams up to 3 with p(n) ∝ 1/n, at most
20 predictions; SentencePiece with 30,000 lower-case entries. 11,813,810 parameters with both heads,
as in transformers' AlbertForPreTraining (checked by a test). Published for version 2, after 10
million steps on more text: SQuAD 1.1 F1 90.2, MNLI 84.6 (README); not measured here.

Differences from the release: activations between layers are bfloat16 (release: float32). Pairs and
masks are drawn again in every epoch (release: 40 fixed sets, `--config.data.dupe_factor=40`).
Version 1 has dropout 0.1 and 0.1; version 2, as here, none. Losses are divided by the counts of the
global batch.

micro_batches: not run; see `bert-jax compile`.

Hours by the TPU compiler, layers in a loop (docs/compile.md): 28.5 on v5e-16, 29.4 on
v5p-16.
"""

from ml_collections import ConfigDict

from bert_jax.configs import base

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = base.get_config()
    config.model.layout = "albert"
    config.model.embedding_size = 128
    config.model.num_hidden_groups = 1
    config.model.hidden_act = "gelu_tanh"
    config.model.hidden_dropout_prob = config.model.attention_probs_dropout_prob = 0.0
    config.data.pairing = "sop"
    config.data.masking = "ngram"
    config.phases[0].seq_length, config.phases[0].max_predictions = 512, 20
    config.phases[0].batch_size, config.phases[0].steps = 4096, 125_000
    config.phases[0].micro_batches = 16
    config.optimizer.name = "lamb_albert"
    config.optimizer.learning_rate, config.optimizer.warmup_steps = 0.00176, 3125
    return config
