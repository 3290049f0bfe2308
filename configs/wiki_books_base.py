r"""BERT-base on Wikipedia and books, the paper's run: length 128, then 512.

    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=vocab.txt --dedup=exact --out=STORE
    bert-jax pretrain --config=wiki_books_base --config.data.store=STORE --workdir=RUN

Batch 256, 900,000 steps at length 128 and 100,000 at 512, one schedule over all of them: learning
rate 1e-4, warmup 10,000 (Devlin et al. 2018, appendix A.2). Published: GLUE test 79.6 (table 1), 4
days on 16 TPU chips (appendix A.2); not measured here.

At 512 an example has up to 77 predictions, by the release's rule round(0.15·512); MLPerf and the TF
models cap it at 76, NVIDIA's data has room for 80. The moments carry over, as in a single run; the
scripts of google-research/bert, run once per length, would reset the moments and the schedule.

Differences from the release, as in `base`: activations between layers are bfloat16 (release:
float32, `--config.compute.dtype=float32`); pairs and masks are drawn again in every epoch (release:
10 fixed sets written in advance, `--config.data.dupe_factor=10`); random second sentences come from
a document of the same source (release: of any, `--config.data.negative_pool=corpus`); losses are
divided by the counts of the global batch (release: of each core, plus 1e-5).
"""

from ml_collections import ConfigDict

from bert_jax.configs import base

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = base.get_config()
    config.phases = base.short_then_long(config.phases[0])
    return config
