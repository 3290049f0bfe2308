r"""The encoder Ettin of 32 million parameters: ModernBERT's layers, 10 of them, 384 wide.

    bert-jax pretrain --config=ettin_32m --config.data.store=STORE --workdir=RUN

Weller et al. 2025 (arXiv 2507.11412): rate 0.003, decay 0.0003. The recipe is that of `ettin_17m`.
With the vocabulary of the release 32,081,344 parameters. Not measured here.

Differences from the release: as in `ettin_17m`, including bfloat16 activations.

Hours by the TPU compiler, layers in a loop (docs/compile.md): 101, 15.7 and 5.9 for the three
phases on v5e-16; 94.0, 15.9 and 6.1 on v5p-16.
"""

from ml_collections import ConfigDict

from bert_jax.configs.ettin_17m import ettin

SLICE = "v5e-4"


def get_config() -> ConfigDict:
    return ettin(width=384, heads=6, layers=10, intermediate=576, rate=0.003, decay=0.0003)
