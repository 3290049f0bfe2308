"""`roberta` masking as released with RoBERTa (fairseq at 3d262bb, `data/mask_tokens_dataset.py` and
`tasks/masked_lm.py`). Three things differ from `token`:

- any position may be chosen, so that [CLS] and [SEP] are masked and predicted too;
- of n positions int(rate·n + U) are chosen, U uniform in [0, 1): rate·n on average, and where that
  is below 1 perhaps none;
- a random id is none of the four entries that fairseq's dictionary begins with (`nspecial`: <s>,
  <pad>, </s>, <unk>), so here not [CLS], [PAD], [SEP] or [UNK]. fairseq adds <mask> to the
  dictionary after these are counted, so that a random id may be [MASK], one time in V - 4: here
  too.

What a chosen token becomes is drawn for each on its own, with the shares of `token`.
"""

from bert_jax.data_pipeline.masking.tokens import choose_tokens
from bert_jax.data_pipeline.random.counter_rng import chance, draw
from bert_jax.data_pipeline.random.numba_jit import compiled


@compiled
def choose_positions(key, number_key, count, most, fewer_limit, order, marked, chosen):
    """Choose int(rate·count + U) of `count` positions, all alike; their number.

    most: rate·count rounded up. fewer_limit: the chance of one fewer, see `Rule`. order, marked,
    chosen: as in `choose_tokens`.
    """
    wanted = most - (1 if chance(draw(number_key, 0), fewer_limit) else 0)
    choose_tokens(key, count, wanted, order, marked, chosen)
    return wanted
