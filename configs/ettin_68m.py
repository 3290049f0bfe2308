r"""The encoder Ettin of 68 million parameters: ModernBERT's layers, 19 of them, 512 wide.

    bert-jax pretrain --config=ettin_68m --config.data.store=STORE --workdir=RUN

Weller et al. 2025 (arXiv 2507.11412): rate 0.003, decay 0.0003. The recipe is that of `ettin_17m`.
With the vocabulary of the release 68,457,664 parameters. Not measured here.

Differences from the release: as in `ettin_17m`, including bfloat16 activations.

Hours by the TPU compiler, layers in a loop (docs/compile.md): 242, 40.2 and 15.7 for the three
phases on v5e-16; 240, 40.4 and 15.8 on v5p-16.
"""

from ml_collections import ConfigDict

from bert_jax.configs.ettin_17m import ettin

SLICE = "v5e-8"


def get_config() -> ConfigDict:
    return ettin(width=512, heads=8, layers=19, intermediate=768, rate=0.003, decay=0.0003)
