r"""ALBERT-large v2.

    bert-jax pretrain --config=albert_large --config.data.store=STORE --workdir=RUN

Lan et al. 2019 (arXiv 1909.11942). The recipe is that of `albert_base`. 17,847,474 parameters with
both heads, as in transformers' AlbertForPreTraining (checked by a test). Published for version 2,
after 3 million steps on more text: SQuAD 1.1 F1 91.8, MNLI 86.5 (README of google-research/albert);
not measured here.

Differences from the release: as in `albert_base`, including bfloat16 activations.

Hours by the TPU compiler, layers in a loop (docs/compile.md): 83.9 on v5e-16, 83.7 on
v5p-16.
"""

from ml_collections import ConfigDict

from bert_jax.configs import albert_base

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = albert_base.get_config()
    config.model.hidden_size, config.model.num_attention_heads = 1024, 16
    config.model.num_hidden_layers, config.model.intermediate_size = 24, 4096
    config.phases[0].micro_batches = 32
    return config
