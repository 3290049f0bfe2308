r"""The encoder Ettin of 150 million parameters: ModernBERT's layers, 22 of them, 768 wide.

    bert-jax pretrain --config=ettin_150m --config.data.store=STORE --workdir=RUN

Weller et al. 2025 (arXiv 2507.11412): rate 0.0008, decay 1e-05. The recipe is that of `ettin_17m`.
With the vocabulary of the release 149,655,232 parameters. Not measured here.

Differences from the release: as in `ettin_17m`, including bfloat16 activations.

Hours by the TPU compiler, layers in a loop (docs/compile.md): 474, 75 and 30 for the three phases
on v5e-16; about 440, 71 and 30 on v5p-16 (the first two by the steps of `modernbert_base`).
"""

from ml_collections import ConfigDict

from bert_jax.configs.ettin_17m import ettin

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    return ettin(width=768, heads=12, layers=22, intermediate=1152, rate=0.0008, decay=1e-05)
