r"""BERT-base trained as RoBERTa: full sentences up to length 512, no pairs, larger batches.

    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=vocab.txt --out=STORE
    bert-jax pretrain --config=roberta_base --config.data.store=STORE --workdir=RUN

Liu et al. 2019 with the hyperparameters of fairseq's
`examples/roberta/config/pretraining/base.yaml` and README: FULL-SENTENCES with the separators that
`fairseq-preprocess` leaves; its dynamic masking; its schedule and weight decay; Adam with b2 = 0.98
and no clipping, LayerNorm with eps 1e-5, batch 2048, 125,000 updates, learning rate 5e-4, warmup
10,000. Published on Wikipedia and books with full sentences (at batch 256): SQuAD 1.1/2.0 F1
90.4/79.1, MNLI-m 84.7, SST-2 92.5, RACE 64.8 (table 2, quoted from memory). Not measured here.

Differences from fairseq: activations between layers are bfloat16 (fairseq: the model is float16
with loss scaling). A separator follows every sentence (fairseq: every line, which RoBERTa does not
define). A sentence too long for a block is split (fairseq: dropped). A batch mixes rows of any
length (fairseq: similar lengths on each GPU). Initial weights are truncated at two standard
deviations. Token type 0 is added to every token and type 1 is never trained (fairseq: no token
types). Positions start at 0 (fairseq: 2), and at export in the row after that of the padding id.
Any tokenizer of the store works; RoBERTa's is a byte-level BPE. The exported model is a
`RobertaForMaskedLM`. The 160 GB of text of RoBERTa's longer runs are not available. eps is added
after Adam's bias correction (fairseq: this depends on the installed packages, see
`make_optimizer`).

micro_batches: 8 rows of 512 tokens at a time on each of 16 devices with 16 GB (v5e-16). An
estimate, not run.
"""

from ml_collections import ConfigDict

from bert_jax.configs import base

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = base.get_config()
    config.model.layer_norm_eps = 1e-5
    config.model.layout = "roberta"
    config.data.pairing = "full_sentences"
    config.data.separators = "sentences"
    config.data.short_seq_prob = 0.0
    config.data.masking = "roberta"
    config.phases[0].steps = 125_000
    config.phases[0].batch_size = 2048
    config.phases[0].micro_batches = 16
    config.phases[0].seq_length = 512
    config.phases[0].max_predictions = 77
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 5e-4
    config.optimizer.schedule = "fairseq"
    config.optimizer.b2 = 0.98
    config.optimizer.clip_norm = 0.0
    config.optimizer.weight_decay_on = "all"
    return config
