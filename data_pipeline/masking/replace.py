"""Replaces the selected tokens with [MASK] or a random id, or leaves them unchanged."""

import numpy as np

from bert_jax.data_pipeline.random.counter_rng import below, chance, draw
from bert_jax.data_pipeline.random.numba_jit import compiled


@compiled
def drawn(bits, limits):
    """Returns the first index whose limit is above 64 random bits read as a fraction: int64.

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
    """Returns a random replacement id, uniform over the vocabulary or by `rule.id_limits`."""
    if len(rule.id_limits):
        return drawn(bits, rule.id_limits)
    return below(bits, rule.vocab_size)


@compiled
def replace_tokens(key, ids, places, chosen, count, rule):
    """Replaces `count` selected tokens independently, in the order in which they were selected.

    As in google-research/bert at eedf571, `create_pretraining_data.py:391-401`: one draw for
    [MASK], a second for keeping, a third for the random id.

    Args:
        ids: int32, the row, changed in place.
        places: int32, positions of the maskable tokens in the row.
        chosen: indices into `places`.
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
    """Replaces the tokens of slots [first, stop) all in the same way; returns the index of the next
    draw.

    As in SpanBERT, `pretraining/fairseq/data/masking.py:259-269`: one draw for the span, then, if
    it becomes random, one for the id of each token.
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
