r"""BERT-base trained as RoBERTa: whole sentences up to length 512, no pairs, larger batches.

    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=vocab.txt --out=STORE
    bert-jax pretrain --config=roberta_base --config.data.store=STORE --workdir=RUN

Liu et al. 2019 in the values of fairseq's `examples/roberta/config/pretraining/base.yaml` and
README: FULL-SENTENCES, masks drawn anew in every epoch, Adam with b2 = 0.98 and no clipping, batch
2048, 125,000 updates, learning rate 5e-4, warmup 10,000. Published on Wikipedia and books with full
sentences (at batch 256): SQuAD 1.1/2.0 F1 90.4/79.1, MNLI-m 84.7, SST-2 92.5, RACE 64.8 (table 2,
quoted from memory). Not measured here.

What RoBERTa has and this has not: byte-level BPE (any tokenizer of the store can be used, with its
`model.vocab_size`); position numbers that begin at 2; its own names and its own head when exported
(this is a `BertForMaskedLM` to transformers, with a second token type that is never trained); the
160 GB of text. fairseq decays biases and LayerNorm too, and its rate falls from the peak at the end
of the warmup; here it is 8 % lower from there on.

micro_batches: at a time 8 rows of 512 tokens on each of 16 devices of 16 GB (v5e-16). An estimate,
not tried.
"""

from ml_collections import ConfigDict

from configs import base

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = base.get_config()
    config.data.pairing = "full_sentences"
    config.data.short_seq_prob = 0.0
    config.phases[0].steps = 125_000
    config.phases[0].batch_size = 2048
    config.phases[0].micro_batches = 16
    config.phases[0].seq_length = 512
    config.phases[0].max_predictions = 77
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 5e-4
    config.optimizer.b2 = 0.98
    config.optimizer.clip_norm = 0.0
    return config
