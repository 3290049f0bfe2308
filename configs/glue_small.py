r"""Fine-tunes a small model, or any on few examples: the rate by width, the steps by rows.

    bert-jax finetune --config=glue_small --config.init=RUN --config.task.name=sst2 \
        --config.task.data=SST-2 --workdir=RUN_SST2

`glue` with what models far narrower than BERT-base need, in float32: a peak rate of 3e-4 at width
256 and in inverse proportion at others (6e-4 at 128, 1e-4 at 768); eight epochs, but at least 200
steps and at most 500: of 1,000 rows eight epochs, of 4,000 four, of 16,000 one.

benchmarks/finetune_recipe.py chooses such values on a part of the training rows of SST-2,
benchmarks/label_efficiency.py measures them.
"""

from ml_collections import ConfigDict

from bert_jax.configs import glue


def get_config() -> ConfigDict:
    config = glue.get_config()
    config.log_every_steps = 25
    config.task.epochs = 8.0
    config.task.fewest_steps = 200
    config.task.most_steps = 500
    config.optimizer.learning_rate = 3e-4
    config.optimizer.base_width = 256
    config.compute.dtype = "float32"
    return config
