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

from bert_jax.data_pipeline.masking.tokens import choose_tokens
from bert_jax.data_pipeline.random.counter_rng import chance, draw
from bert_jax.data_pipeline.random.numba_jit import compiled


@compiled
def choose_positions(key, number_key, count, most, fewer_limit, order, marked, chosen):
    """Selects int(rate·count + U) of `count` positions uniformly; returns their number.

    most: rate·count rounded up. fewer_limit: the probability of one fewer, see `Rule`. order,
    marked, chosen: as in `choose_tokens`.
    """
    wanted = most - (1 if chance(draw(number_key, 0), fewer_limit) else 0)
    choose_tokens(key, count, wanted, order, marked, chosen)
    return wanted
