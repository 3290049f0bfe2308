r"""A BERT with 4 layers and width 256 on Wikipedia and books: one to two hours on two CPU cores.

    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=vocab.txt --dedup=exact --out=STORE
    bert-jax pretrain --config=wiki_books_small --config.data.store=STORE \
        --workdir=RUN

The size of the released BERT-mini (google-research/bert, README of 11 March 2020). Its initial
values and its optimizer are not the paper's, with which it stays near the unigram loss for
thousands of steps (docs/learning.md). One run ended at a held-out MLM loss of 3.991 ± 0.149 nats
(unigram baseline: 7.00) and a next-sentence accuracy of 83.6 % ± 2.3 % (baseline: 59.0 %); from
random words, without the counts, at 4.59 and 71.3 %. docs/results.md has the curves.
"""

from ml_collections import ConfigDict

from bert_jax.config.defaults import COUNTED_START
from bert_jax.configs import tiny


def get_config() -> ConfigDict:
    config = tiny.get_config()
    config.update_from_flattened_dict(COUNTED_START)
    config.log_every_steps = 20
    config.model.hidden_size = 256
    config.model.num_hidden_layers = 4
    # one each for the tokens at -1, +1, -2 and +2; eight heads learned more slowly
    config.model.num_attention_heads = 4
    config.model.intermediate_size = 1024
    config.model.initializer_range = 0.06  # 1/sqrt(width); 0.02 learns far more slowly at first
    config.model.hidden_dropout_prob = 0.0  # no text is seen twice in a short run
    config.model.attention_probs_dropout_prob = 0.0
    config.phases[0].steps = 4000
    config.optimizer.name = "muon"
    config.optimizer.learning_rate = 1e-3  # in pilots of 600 steps just ahead of 2e-3
    config.optimizer.muon_scale = 10.0
    config.optimizer.b2 = 0.98
    config.optimizer.schedule = "fairseq"
    config.optimizer.warmup_steps = 300
    config.evaluation.batches = 16
    return config
