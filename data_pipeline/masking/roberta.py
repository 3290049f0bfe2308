"""`roberta` masking as released with RoBERTa (fairseq at 3d262bb, `data/mask_tokens_dataset.py` and
`tasks/masked_lm.py`). It differs from `token` in three ways:

- any position may be selected, so [CLS] and [SEP] are masked and predicted too;
- of n positions int(rate·n + U) are selected, U uniform in [0, 1): rate·n on average, and possibly
  none if that is below 1;
- a random id is not one of the first four entries of fairseq's dictionary (`nspecial`: <s>, <pad>,
  </s>, <unk>), so here not [CLS], [PAD], [SEP] or [UNK]. fairseq adds <mask> after counting these,
  so a random id may be [MASK], with probability 1 / (V - 4): here too.

Replacements are drawn independently per token, with the probabilities of `token`.
"""

from typing import Final

import numpy as np

from bert_jax.data_pipeline.masking.masking_settings import MaskingSettings
from bert_jax.data_pipeline.masking.mode import Mode, round_up
from bert_jax.data_pipeline.masking.tokens import select_tokens
from bert_jax.data_pipeline.random.counter_rng import chance, draw, fold_key, threshold
from bert_jax.data_pipeline.random.numba_jit import compiled


@compiled
def select_positions(key, rule, scratch, count, wanted):
    """Selects int(rate·count + U) of `count` positions uniformly; `wanted` is rate·count rounded
    up."""
    fewer = chance(draw(fold_key(key, 3), 0), rule.limits[count])
    return select_tokens(key, rule, scratch, count, min(wanted, count) - (1 if fewer else 0))


def _fewer_limits(settings: MaskingSettings, budgets: np.ndarray) -> np.ndarray:
    """P(rate·size is rounded down) by size; 0 where `max_predictions` is below rate·size."""
    chances = (
        max(0.0, budget - size * settings.mask_rate) for size, budget in enumerate(budgets.tolist())
    )
    return np.array([threshold(fewer) for fewer in chances], np.uint64)


MODE: Final = Mode(
    select_positions, wanted=round_up, exact=False, limits=_fewer_limits,
    masks_specials=True, draws_specials=False,
)  # fmt: skip
