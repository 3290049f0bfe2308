"""`token` masking as released with BERT (google-research/bert at eedf571,
`create_pretraining_data.py:342-415` without whole words). Two details: the number of predictions
counts the special tokens and rounds halves to even, and a random replacement is drawn from the full
vocabulary, special and unused ids included.
"""

from bert_jax.data_pipeline.random.counter_rng import below, draw
from bert_jax.data_pipeline.random.numba_jit import compiled


@compiled
def choose_tokens(key, count, wanted, order, marked, chosen):
    """Selects `wanted` ≤ `count` tokens uniformly.

    order: int32 [≥ count], scratch. marked: uint8 [≥ count], set to 1 for each selected token.
    chosen: int32 [≥ wanted], filled in the order of selection.
    """
    for k in range(count):
        order[k] = k
    for turn in range(wanted):
        # A partial Fisher-Yates shuffle, from the front.
        other = turn + below(draw(key, turn), count - turn)
        k = order[other]
        order[other] = order[turn]
        chosen[turn] = k
        marked[k] = 1
