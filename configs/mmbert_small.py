r"""mmBERT-small: 384 wide.

    bert-jax pretrain --config=mmbert_small --config.data.store=STORE --workdir=RUN

Marone et al. 2025 (arXiv 2509.06888). The recipe is that of `mmbert_base`. With Gemma 2's
vocabulary 140,897,536 parameters. Not measured here.

Differences from the release: as in `mmbert_base`, including bfloat16 activations.

Hours by the TPU compiler, layers in a loop (docs/compile.md), with 256,000 entries: 469, 112 and 17
for the three phases on v5e-16; 408, 106 and 16 on v5p-16.
"""

from ml_collections import ConfigDict

from bert_jax.configs import mmbert_base

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = mmbert_base.get_config()
    config.model.hidden_size, config.model.num_attention_heads = 384, 6
    return config
