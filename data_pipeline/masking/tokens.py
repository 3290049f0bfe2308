"""`token` masking as released with BERT (google-research/bert at eedf571,
`create_pretraining_data.py:342-415` without whole words). Two traits worth knowing: the number of
predictions counts the special tokens and rounds halves to even, and a random replacement is drawn
from the whole vocabulary, special and unused ids included.
"""

from bert_jax.data_pipeline.random.counter_rng import below, draw
from bert_jax.data_pipeline.random.numba_jit import compiled


@compiled
def choose_tokens(key, count, wanted, order, marked, chosen):
    """Choose `wanted` ≤ `count` tokens, all alike.

    order: int32 [≥ count], scratch. marked: uint8 [≥ count], set to 1 where a token is chosen.
    chosen: int32 [≥ wanted], filled in the order of choice.
    """
    for k in range(count):
        order[k] = k
    for turn in range(wanted):
        # A Fisher-Yates shuffle from the front, only as far as it is needed.
        other = turn + below(draw(key, turn), count - turn)
        k = order[other]
        order[other] = order[turn]
        chosen[turn] = k
        marked[k] = 1
