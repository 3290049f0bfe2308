r"""ModernBERT-large.

    bert-jax data build --source=... --tokenizer=tokenizer.json --out=STORE
    bert-jax pretrain --config=modernbert_large --config.data.store=STORE --workdir=RUN

Warner et al. 2024 (arXiv 2412.13663, table 3 and section 2): 900 billion tokens at length 1,024,
batch 4,928 and rate 5e-4 after a warmup of 2 billion; 800 billion more at 5e-5, decay 1e-6; 250
billion at length 8,192 with batch 616, and 50 billion with a decay as 1 - √. With the vocabulary of
the release 395,881,664 parameters, as transformers' ModernBertForMaskedLM (checked by a test).
Published: GLUE dev 90.4 (table 1); not measured here.

Differences from the release: as in `modernbert_base`, including bfloat16 activations. Its weights
start from those of ModernBERT-base, here from random values. The loss of the release stopped
falling at 5e-4, and its 800 billion tokens began at an earlier checkpoint; here they follow at
once. At length 8,192 the batch is 624 throughout (the release: 616, then 624).

micro_batches: 7 rows of 1,024 tokens or 1 of 8,192 at a time on each of 16 devices with 16 GB
(v5e-16): compiled with layers in a loop (docs/compile.md), not run.

Hours by the TPU compiler, layers in a loop: 575, 511, 186 and 37 for the four phases on v5e-16;
505, 448, 148 and 30 on v5p-16.
"""

from ml_collections import ConfigDict

from bert_jax.configs import modernbert_base

SLICE = "v5e-16"
ROWS = 4928


def get_config() -> ConfigDict:
    config = modernbert_base.get_config()
    config.model.hidden_size, config.model.num_attention_heads = 1024, 16
    config.model.num_hidden_layers, config.model.intermediate_size = 28, 2624
    first, extended, last = modernbert_base.phases(
        config.phases[0], short=900, long=250, decay=50, rows=ROWS
    )
    first.micro_batches = 44
    for phase in (extended, last):
        phase.batch_size, phase.micro_batches = 624, 39
        phase.steps = round(phase.steps * ROWS / (8 * 624))  # for as many tokens
    second = first.copy_and_resolve_references()
    second.steps, second.warmup_steps = round(800e9 / (ROWS * 1024)), 0
    config.phases = first, second, extended, last
    for phase, rate in zip(config.phases, (5e-4, 5e-5, 5e-5, 5e-5), strict=True):
        phase.learning_rate = rate
    config.optimizer.learning_rate, config.optimizer.weight_decay = 5e-4, 1e-5 / 5e-4
    config.optimizer.warmup_steps = round(2e9 / (ROWS * 1024))
    return config
