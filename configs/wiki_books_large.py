r"""BERT-large on Wikipedia and books, the paper's run: length 128, then 512.

    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=vocab.txt --dedup=exact --out=STORE
    bert-jax pretrain --config=wiki_books_large --config.data.store=STORE --workdir=RUN

The phases and the schedule of `wiki_books_base`: batch 256, 900,000 steps at length 128 and 100,000
at 512, learning rate 1e-4, warmup 10,000 (Devlin et al. 2018, appendix A.2). Published: GLUE test
82.1 (table 1), 4 days on 64 TPU chips (appendix A.2); not measured here.

Differences from the release: as in `wiki_books_base`, including bfloat16 activations.
"""

from ml_collections import ConfigDict

from bert_jax.configs import base, large

SLICE = "v5e-64"


def get_config() -> ConfigDict:
    config = large.get_config()
    config.phases = base.short_then_long(config.phases[0])
    return config
