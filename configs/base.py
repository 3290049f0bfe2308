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

import copy
import math

from ml_collections import ConfigDict

from bert_jax.config.defaults import defaults
from bert_jax.errors import UserError

SLICE = "v5e-16"  # the default target of `bert-jax compile`


def get_config() -> ConfigDict:
    return defaults()  # every setting with its meaning: docs/configs.md


def short_then_long(phase: ConfigDict) -> tuple[ConfigDict, ConfigDict]:
    """Splits a phase in two: 90 % of its steps at length 128, the rest at 512, as in the paper."""
    _check_can_be_split(phase)
    short, long = copy.deepcopy(phase), copy.deepcopy(phase)
    short.steps = phase.steps * 9 // 10
    long.steps = phase.steps - short.steps
    long.seq_length, long.max_predictions = 512, 77
    return short, long


def batch_ramp(phase: ConfigDict, first: int, share: float = 0.1) -> tuple[ConfigDict, ...]:
    """Splits a phase into phases whose batch doubles from `first` rows to the phase's own.

    All phases together have the tokens of the phase. The smaller batches get `share` of them in
    equal parts, each at least one step of the full batch; micro-batches keep their size if
    possible.

    Raises:
        UserError: the phase's batch is not `first` times a power of two, it has too few steps, or
            its mask rate changes.
    """
    _check_can_be_split(phase)
    doublings = max(0, (phase.batch_size // max(first, 1)).bit_length() - 1)
    if first << doublings != phase.batch_size:
        raise UserError(
            f"batch_ramp: batch_size={phase.batch_size} is not {first} rows times a power of two; "
            "change one of them"
        )
    part = max(1, round(share * phase.steps / max(doublings, 1)))  # in steps of the full batch
    if part * doublings >= phase.steps:
        raise UserError(
            f"batch_ramp: {doublings} smaller batches leave none of the {phase.steps} steps to "
            "the full batch; raise steps or the first batch, or lower the share"
        )
    phases = []
    for halvings in range(doublings, 0, -1):
        ramp = copy.deepcopy(phase)
        ramp.batch_size, ramp.steps = phase.batch_size >> halvings, part << halvings
        ramp.micro_batches = math.gcd(ramp.batch_size, max(1, phase.micro_batches >> halvings))
        phases.append(ramp)
    full = copy.deepcopy(phase)
    full.steps = phase.steps - part * doublings
    return (*phases, full)


def _check_can_be_split(phase: ConfigDict) -> None:
    """Raises UserError for a phase whose mask rate would change from its start in each part."""
    if (end := phase.get("mask_rate_end")) is not None:
        raise UserError(
            f"mask_rate_end={end}: set it after a phase was split, in the phase in "
            "which the rate changes"
        )
