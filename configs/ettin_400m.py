r"""The encoder Ettin of 400 million parameters: ModernBERT's layers, 28 of them, 1,024 wide.

    bert-jax pretrain --config=ettin_400m --config.data.store=STORE --workdir=RUN

Weller et al. 2025 (arXiv 2507.11412): rate 0.0005, decay 1e-05. The recipe is that of `ettin_17m`.
With the vocabulary of the release 395,881,664 parameters. Not measured here.

Differences from the release: as in `ettin_17m`, including bfloat16 activations.

Hours by the TPU compiler, layers in a loop (docs/compile.md): 1,048, 191 and 76 for the three
phases on v5e-16; 951, 157 and 63 on v5p-16.
"""

from ml_collections import ConfigDict

from bert_jax.configs.ettin_17m import ettin

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = ettin(width=1024, heads=16, layers=28, intermediate=2624, rate=0.0005, decay=1e-05)
    config.phases[0].micro_batches = 48
    return config
