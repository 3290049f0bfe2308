"""BERT-base, and the defaults that every other config starts from.

    bert-jax pretrain --config=base --config.data.store=STORE --workdir=RUN

110,106,428 parameters with both heads, as in transformers' BertForPreTraining (checked by a test).
The training hyperparameters are the paper's (Devlin et al. 2018, appendix A.2) at sequence length
128. Not measured here.

Differences from the release: activations between layers are bfloat16 (release: float32,
`--config.compute.dtype=float32`). Pairs and masks are drawn again in every epoch (release: 10 fixed
sets written in advance, `--config.data.dupe_factor=10`). A random second sentence comes from a
document of the same source (release: of any, `--config.data.negative_pool=corpus`). Losses are
divided by the counts of the global batch (release: of each core, plus 1e-5). The paper trains the
last tenth of its steps at length 512: see `wiki_books_base`.
"""

from ml_collections import ConfigDict

from bert_jax.config.defaults import defaults

SLICE = "v5e-16"  # the default target of `bert-jax compile`


def get_config() -> ConfigDict:
    return defaults()  # every setting with its meaning: docs/configs.md


def short_then_long(phase: ConfigDict) -> tuple[ConfigDict, ConfigDict]:
    """Splits a phase in two: 90 % of its steps at length 128, the rest at 512, as in the paper."""
    short, long = phase.copy_and_resolve_references(), phase.copy_and_resolve_references()
    short.steps = phase.steps * 9 // 10
    long.steps = phase.steps - short.steps
    long.seq_length, long.max_predictions = 512, 77
    return short, long
