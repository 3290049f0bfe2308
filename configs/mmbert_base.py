r"""mmBERT-base: a multilingual ModernBERT whose masks and languages change by phase.

    bert-jax data build --source=... --tokenizer=tokenizer.json --out=STORE
    bert-jax pretrain --config=mmbert_base --config.data.store=STORE --workdir=RUN

Marone et al. 2025 (arXiv 2509.06888): masks of 30, 15 and 5 % and language smoothing of 0.7, 0.5
and 0.3 in three phases (60, 110 and 1,833 languages), of 2.3 trillion tokens at length 1,024, 600
billion at 8,192, and 100 billion with a decay of the rate (the numbers of tokens quoted from
memory); StableAdamW with b2 = 0.95, eps 1e-8, decay 8e-5, rate 8e-4. With Gemma 2's vocabulary of
256,000 entries 307,786,240 parameters. Not measured here.

Differences from the release: as in `modernbert_base`, including bfloat16 activations; batches are
those of ModernBERT-base; the local theta is as in `ettin_17m`. All languages of the store are read
in every phase: leave one out of an early phase by a source weight of 0.

Hours by the TPU compiler, layers in a loop (docs/compile.md), with 256,000 entries: 791, 208 and 33
for the three phases on v5e-16; 724, 199 and 31 on v5p-16.
"""

from ml_collections import ConfigDict

from bert_jax.configs import modernbert_base

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = modernbert_base.get_config()
    config.model.local_rope_theta = 160_000.0
    config.phases = modernbert_base.phases(config.phases[0], short=2300, long=600, decay=100)
    values = zip(config.phases, (0.3, 0.15, 0.05), (0.7, 0.5, 0.3), strict=True)
    for phase, mask_rate, smoothing in values:
        phase.learning_rate = 8e-4
        phase.mask_rate, phase.language_smoothing = mask_rate, smoothing
    config.optimizer.b2, config.optimizer.eps = 0.95, 1e-8
    config.optimizer.weight_decay = 8e-5 / 8e-4
    return config
