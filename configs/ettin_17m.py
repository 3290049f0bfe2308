r"""The encoder Ettin of 17 million parameters: ModernBERT's layers, 7 of them, 256 wide.

    bert-jax data build --source=... --tokenizer=tokenizer.json --out=STORE
    bert-jax pretrain --config=ettin_17m --config.data.store=STORE --workdir=RUN

Weller et al. 2025 (arXiv 2507.11412): 1.7 trillion tokens at length 1,024, 250 billion at 8,192 and
100 billion with a decay of the rate, masks of 30 % and, in the decay, 15 %; StableAdamW with eps
1e-6, rate 3e-3, decay 3e-4. With the vocabulary of the release (50,368 rows) 16,913,600 parameters.
Not measured here.

Differences from the release: as in `modernbert_base`, including bfloat16 activations; batches are
those of ModernBERT-base (4,608 rows of 1,024 tokens), and so are the warmup of 3 billion tokens and
b2 = 0.98, which the paper does not give for each size. The local theta is the release's, 160,000,
from the first step; which one its first phase had is not known here.

Hours by the TPU compiler, layers in a loop (docs/compile.md): 49.9, 7.9 and 2.8 for the three
phases on v5e-16; 49.0, 7.9 and 2.9 on v5p-16.
"""

from ml_collections import ConfigDict

from bert_jax.configs import modernbert_base

SLICE = "v5e-4"


def get_config() -> ConfigDict:
    return ettin(width=256, heads=4, layers=7, intermediate=384, rate=3e-3, decay=3e-4)


def ettin(
    *, width: int, heads: int, layers: int, intermediate: int, rate: float, decay: float
) -> ConfigDict:
    """Returns ModernBERT of another size with Ettin's recipe; decay: of a step at the peak."""
    config = modernbert_base.get_config()
    config.model.hidden_size, config.model.num_attention_heads = width, heads
    config.model.num_hidden_layers, config.model.intermediate_size = layers, intermediate
    config.model.local_rope_theta = 160_000.0
    config.phases = modernbert_base.phases(config.phases[0], short=1700, long=250, decay=100)
    for phase in config.phases:
        phase.learning_rate = rate
    config.phases[-1].mask_rate = 0.15
    config.optimizer.learning_rate, config.optimizer.weight_decay = rate, decay / rate
    return config
