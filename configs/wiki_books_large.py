r"""BERT-large on Wikipedia and books, the paper's run at sequence length 128.

    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=vocab.txt --out=STORE
    bert-jax pretrain --config=wiki_books_large --config.data.store=STORE --workdir=RUN

Batch 256, 1,000,000 steps, learning rate 1e-4, warmup 10,000 (Devlin et al. 2018, appendix A.2; the
paper runs the last tenth at length 512). Published: GLUE test 82.1 (table 1); not measured here.
"""

from ml_collections import ConfigDict

from configs import large


def get_config() -> ConfigDict:
    return large.get_config()
