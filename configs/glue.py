r"""Fine-tunes a model for a task of GLUE with the paper's recipe.

    bert-jax finetune --config=glue --config.init=RUN --config.task.name=sst2 \
        --config.task.data=SST-2 --workdir=RUN_SST2

The hyperparameters are those of run_classifier.py of google-research/bert: 3 epochs, batches of 32
examples of at most 128 tokens, peak rate 5e-5, warm-up over a tenth of the steps and linear decay,
weight decay 0.01, gradients clipped at 1.0, dropout 0.1. The paper (Devlin et al. 2018, appendix
A.3) tries 2 to 4 epochs, batches of 16 and 32, and rates of 5e-5, 3e-5 and 2e-5. Published on the
tests of GLUE (table 1): BERT-base SST-2 93.5, CoLA 52.1, RTE 66.4; not measured here.

Differences from run_classifier.py: the moments are bias-corrected (there: not,
`--config.optimizer.name=bert_adamw`), whose absence Mosbach et al. 2020 (arXiv 2006.04884) and
Zhang et al. 2020 (arXiv 2006.05987) blame for the unstable results on small tasks; a batch has an
example of each stratum of lengths (there: any, `--config.task.batches=shuffle`), and whole examples
are packed into rows, which changes no loss (there: padded rows,
`'--config.phases[0].examples_per_row=1'`); a "[SEP]" in a text is the special token, as in
transformers (there: characters, `--config.task.split_special_tokens=True`). Activations between
layers are bfloat16 (there: float32, `--config.compute.dtype=float32`).
"""

from ml_collections import ConfigDict

from bert_jax.config.defaults import without_architecture
from bert_jax.configs import base

SLICE = "v5e-4"


def get_config() -> ConfigDict:
    config = without_architecture(base.get_config())
    config.log_every_steps = 50
    config.phases[0].batch_size = 32
    config.phases[0].examples_per_row = 32
    config.phases[0].max_predictions = 1
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 5e-5
    config.compute.shard_optimizer = False
    config.checkpoint.keep = 1
    return config
