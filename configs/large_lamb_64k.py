r"""BERT-large in 8,599 steps with LAMB: batch 65,536 at length 128, then 32,768 at 512.

    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=vocab.txt --out=STORE
    bert-jax pretrain --config=large_lamb_64k --config.data.store=STORE --workdir=RUN

You et al. 2019 (arXiv 1904.00962). Published: 76.19 minutes on 1,024 TPUv3 chips, SQuAD 1.1 F1
90.584 (v1, table 1); not measured here.

Confirmed (abstract and table 1): the batch sizes, and 8,599 steps in total. Quoted from memory:
7,037 steps in the first phase and 1,562 in the second (nine tenths and one tenth of the examples of
a million steps at batch 512); the second phase warms up again from zero; the learning rate scales
with the square root of the batch size, and the warmup fraction with the batch size, from 5e-3 and
1/5 at 32,768. That rule gives 7.07e-3 and 2/5 for the first phase; the authors may have used other
values. Whether their moments carried over between phases is not known; here they start from zero,
as in google-research/bert, which restores only parameters. For a schedule with every value
published see `large_lamb_64k_nvidia`.

Differences from the paper: activations between layers are bfloat16 (the paper's dtype is not
known). LAMB is the variant of most implementations (`bert_jax/optimizers/lamb.py`), which may
differ from the paper's. As in `base`, pairs and masks are new in every epoch, random second
sentences come from the same source, and losses are means over the global batch.

micro_batches: 16 rows of 128 tokens or 2 of 512 at a time on each of 128 devices with 16 GB
(v5e-128), twice that on 64 with 32 GB (v4-128). Estimated from XLA's memory analysis on a CPU, not
run on either.
"""

from ml_collections import ConfigDict

from bert_jax.configs import base, large

SLICE = "v5e-128"


def get_config() -> ConfigDict:
    config = large.get_config()
    short, long = base.short_then_long(config.phases[0])

    short.batch_size, short.steps = 65_536, 7037
    short.micro_batches = 32

    long.batch_size, long.steps = 32_768, 1562
    long.learning_rate, long.warmup_steps = 5e-3, 312
    long.micro_batches = 128

    config.phases = (short, long)
    config.optimizer.name = "lamb"
    config.optimizer.learning_rate, config.optimizer.warmup_steps = 7.07e-3, 2815  # first phase
    config.optimizer.schedule_over = "phase"
    config.optimizer.phase_moments = "reset"
    config.optimizer.phase_count = "reset"
    config.checkpoint.every_steps = 100
    config.evaluation.every_steps = 100
    config.evaluation.batches = 1  # a batch is 65,536 rows
    return config
