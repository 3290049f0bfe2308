"""`token` masking as released with BERT (google-research/bert at eedf571,
`create_pretraining_data.py:342-415` without whole words). Two details: the number of predictions
counts the special tokens and rounds halves to even, and a random replacement is drawn from the full
vocabulary, special and unused ids included.
"""

from typing import Final

from bert_jax.data_pipeline.masking.mode import Mode
from bert_jax.data_pipeline.random.counter_rng import below, draw, fold_key
from bert_jax.data_pipeline.random.numba_jit import compiled


@compiled
def select_tokens(key, rule, scratch, count, wanted):
    """Selects `wanted` tokens uniformly, or all if there are fewer."""
    key, taken = fold_key(key, 0), min(wanted, count)
    order = scratch.order
    for k in range(count):
        order[k] = k
    for turn in range(taken):
        # A partial Fisher-Yates shuffle, from the front.
        other = turn + below(draw(key, turn), count - turn)
        k = order[other]
        order[other] = order[turn]
        scratch.chosen[turn] = k
        scratch.marked[k] = 1
    return taken


MODE: Final = Mode(select_tokens)
