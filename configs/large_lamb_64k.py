r"""BERT-large in 8,599 steps with LAMB: batch 65,536 at length 128, then 32,768 at 512.

    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=vocab.txt --out=STORE
    bert-jax pretrain --config=large_lamb_64k --config.data.store=STORE --workdir=RUN

You et al. 2019 (arXiv 1904.00962). Published: 76.19 minutes on 1,024 TPUv3 chips, SQuAD 1.1 F1
90.584 (v1, table 1); not measured here.

Sure (abstract and table 1): the batches, and 8,599 steps in all. Quoted from memory: 7,037 of them
in the first phase and 1,562 in the second (nine and one tenth of the examples of a million steps
of 512); the second warms up again from zero; learning rates go with the square root of the batch
and the share of steps for the warmup with the batch, from 5e-3 and a fifth at 32,768. That rule
gives 7.07e-3 and two fifths for the first phase; it may not be what the authors used there. Nor is
it known here whether their moments went from one phase to the next: both start from zero, as in
google-research/bert, whose program reads parameters only. `large_lamb_64k_nvidia` is a schedule
whose every value is published.

Other than there: activations between layers are bfloat16; what they were there is not known here.
LAMB is the variant of most implementations (`bert_jax/training/lamb.py`), which the paper's need
not be.
And as in `base`: new pairs and masks in every epoch, random second sentences of the same source,
losses over the whole batch.

micro_batches: at a time 16 rows of 128 tokens, or 2 of 512, on each of 128 devices of 16 GB
(v5e-128), twice that on 64 of 32 GB (v4-128). An estimate from XLA's memory analysis on a CPU, not
tried on either.
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
