r"""Continues the pretraining of a released model on the text of a domain. Not measured at its size.

    bert-jax convert import --from=uncased_L-12_H-768_A-12.zip --out=model
    bert-jax data build --source=books:TEXT --tokenizer=model/tokenizer.json --out=STORE
    bert-jax pretrain --config=continue_domain --config.init=model --config.data.store=STORE \
        --workdir=RUN

The architecture is that of the model that `config.init` names, wherever the command line does not
give another value; docs/continue.md does it on real text. The steps and the rate are those that the
README of google-research/bert advises for "additional steps of pre-training starting from an
existing BERT checkpoint": 10,000 steps or more, 2e-5 in place of 1e-4. Gururangan et al. 2020
(arXiv 2004.10964) show what it is worth. The warm-up is 6 % of the steps. All else is as in `base`:
length 128, the paper's optimizer and batch, masked tokens and next sentence.

Differences from the README: batch 256, the paper's (README's example: 32), and activations between
layers in bfloat16 (release: float32, `--config.compute.dtype=float32`). From Gururangan et al., who
continue RoBERTa (ADAPTIVE_PRETRAINING.md of allenai/dont-stop-pretraining): 10,000 steps of 256
rows (12,500 of 2,048), peak 2e-5 (5e-4), sentence pairs (none:
`--config.data.pairing=full_sentences`).
"""

from ml_collections import ConfigDict

from bert_jax.config.defaults import without_architecture
from bert_jax.configs import base

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = without_architecture(base.get_config())
    config.init = "model"
    config.phases[0].steps = 10_000
    config.optimizer.learning_rate = 2e-5
    config.optimizer.warmup_steps = 600
    return config
