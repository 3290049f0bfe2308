"""What is put in the place of chosen tokens: [MASK], a random id, or the token itself."""

import numpy as np

from bert_jax.data_pipeline.random.counter_rng import below, chance, draw
from bert_jax.data_pipeline.random.numba_jit import compiled


@compiled
def drawn(bits, limits):
    """The first index whose limit lies above 64 bits read as a fraction: int64.

    limits: uint64, cumulative, see `spec.cumulative_limits`.
    """
    fraction = bits >> np.uint64(1)
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) >> 1
        if fraction < limits[middle]:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def random_id(bits, rule):
    if len(rule.id_limits):
        return drawn(bits, rule.id_limits)
    return below(bits, rule.vocab_size)


@compiled
def replace_tokens(key, ids, places, chosen, count, rule):
    """Replace `count` chosen tokens, each on its own, in the order in which they were chosen.

    As google-research/bert at eedf571, `create_pretraining_data.py:391-401`: a draw for [MASK], a
    second for keeping, a third for the random id. ids: int32, the row, changed in place.
    places: int32, where in the row the tokens stand that may be masked. chosen: indices into it.
    """
    n = 0
    for k in range(count):
        bits = draw(key, n)
        n += 1
        position = places[chosen[k]]
        if chance(bits, rule.mask_limit):
            ids[position] = rule.mask_id
            continue
        kept = chance(draw(key, n), rule.keep_limit)
        n += 1
        if not kept:
            ids[position] = random_id(draw(key, n), rule)
            n += 1


@compiled
def replace_span(key, n, ids, positions, first, stop, rule):
    """Replace the tokens at positions [first, stop), all in one way; the number of the next draw.

    As SpanBERT, `pretraining/fairseq/data/masking.py:259-269`: one draw for all, then one for the
    id of every token where they become random.
    """
    bits = draw(key, n)
    n += 1
    if chance(bits, rule.mask_limit):
        for k in range(first, stop):
            ids[positions[k]] = rule.mask_id
    elif chance(bits, rule.random_limit):
        for k in range(first, stop):
            ids[positions[k]] = random_id(draw(key, n), rule)
            n += 1
    return n
