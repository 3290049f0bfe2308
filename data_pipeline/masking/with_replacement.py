"""`with_replacement` masking as released with ELECTRA (google-research/electra at 9ec0f3e,
`pretrain/pretrain_helpers.py`, `mask`): the positions to predict are drawn with replacement. One
that is drawn twice takes two prediction slots, so its loss counts twice, and fewer positions are
masked than predictions are made: with 19 of 126 tokens, 17.7 on average.

The number of predictions is that of `token`. ELECTRA's maximum is int((mask_rate + .005) * length):
max_predictions=19 for 128 tokens, 79 for 512. Its shares are mask_share=.85, random_share=0.

Two differences. ELECTRA draws for every slot whether its position becomes [MASK], so that one drawn
twice stays unchanged with a probability of .15^2 in place of .15; here it is drawn once for a
position. And there are no more predictions than positions to draw from, which matters only at
rates of a half or more.
"""

from typing import Final

import numpy as np

from bert_jax.data_pipeline.masking.mode import Mode
from bert_jax.data_pipeline.masking.replace import replace_token
from bert_jax.data_pipeline.random.counter_rng import below, draw, fold_key
from bert_jax.data_pipeline.random.numba_jit import compiled


@compiled
def select_with_replacement(key, rule, scratch, count, wanted):
    """Selects a token uniformly `wanted` times, or `count` times if that is less."""
    key, taken = fold_key(key, 0), min(wanted, count)
    for turn in range(taken):
        k = below(draw(key, turn), count)
        scratch.marked[k] += 1
        scratch.chosen[turn] = k
    return taken


@compiled
def replace_once(key, rule, scratch, count, taken, out, line, slot):
    """Replaces the selected tokens independently, each once, in the order of their positions."""
    ids, positions = out.input_ids[line], out.masked_positions[line]
    n = np.int64(0)
    for k in range(slot, slot + taken):
        if k == slot or positions[k] != positions[k - 1]:
            n = replace_token(key, n, ids, positions[k], rule)


MODE: Final = Mode(select_with_replacement, replace_once, repeats=True)
