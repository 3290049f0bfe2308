r"""BERT-large with LAMB on NVIDIA's schedule: batch 65,536 at length 128, then 32,768 at 512.

    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=vocab.txt --out=STORE
    bert-jax pretrain --config=large_lamb_64k_nvidia --config.data.store=STORE --workdir=RUN

From `scripts/configs/pretrain_config.sh` of BERT for PyTorch in NVIDIA's DeepLearningExamples:
7,038 steps, learning rate 6e-3, warmup 2,000; then 1,563 steps, 4e-3, warmup 200; both decay with
the square root of the remaining steps. The second phase keeps the moments and resets the count.
Published: SQuAD 1.1 F1 90.68 ± 0.16, final loss of both objectives 1.265 ± 0.023, 1.2 hours on 256
A100-80GB (README); not measured here.

Differences from NVIDIA's: activations between layers are bfloat16 (theirs: float16 with loss
scaling); their scheduler counts updates from one, so their learning rates are one step ahead; their
pairs and masks are drawn once, before training; their vocabulary is padded to a multiple of 8;
random second sentences come from a document of the same source here.

micro_batches: 16 rows of 128 tokens or 2 of 512 at a time on each of 128 devices with 16 GB
(v5e-128), twice that on 64 with 32 GB (v4-128). Estimated from XLA's memory analysis on a CPU, not
run on either.
"""

from ml_collections import ConfigDict

from bert_jax.configs import large_lamb_64k

SLICE = "v5e-128"


def get_config() -> ConfigDict:
    config = large_lamb_64k.get_config()
    short, long = config.phases
    short.steps, long.steps = 7038, 1563
    long.learning_rate, long.warmup_steps = 4e-3, 200
    long.max_predictions = 80
    config.optimizer.learning_rate, config.optimizer.warmup_steps = 6e-3, 2000  # first phase
    config.optimizer.decay_power = 0.5
    config.optimizer.phase_moments = "carry"
    return config
