"""Replaces the selected tokens with [MASK] or a random id, or leaves them unchanged."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from bert_jax.data_pipeline.random.counter_rng import below, chance, draw
from bert_jax.data_pipeline.random.numba_jit import compiled


def cumulative_limits(weights: Sequence[Fraction | int]) -> np.ndarray:
    """Returns uint64 [n] limits for which `drawn` returns i with probability weights[i] / sum.

    Exact to 2**-63; an index of weight 0 is never drawn.
    """
    total, so_far = sum(weights), Fraction(0)
    limits = np.empty(len(weights), np.uint64)
    for i, weight in enumerate(weights):
        so_far += weight
        limits[i] = -(-so_far * 2**63 // total)
    return limits


@compiled
def drawn(bits, limits):
    """Returns the first index whose limit is above 64 random bits read as a fraction: int64.

    limits: uint64, see `cumulative_limits`.
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
def replace_token(key, n, ids, position, rule):
    """Replaces the token at a position, or keeps it; returns the index of the next draw.

    As in google-research/bert at eedf571, `create_pretraining_data.py:391-401`: one draw, from `n`
    on, for [MASK], a second for keeping, a third for the random id.
    """
    if chance(draw(key, n), rule.mask_limit):
        ids[position] = rule.mask_id
        return n + 1
    if chance(draw(key, n + 1), rule.keep_limit):
        return n + 2
    ids[position] = random_id(draw(key, n + 2), rule)
    return n + 3


@compiled
def replace_tokens(key, rule, scratch, count, taken, out, line, slot):
    """Replaces the selected tokens independently, in the order of `scratch.chosen`.

    Args:
        key: uint64, stream 1 of the example.
        count, taken: tokens of the example in `scratch`, and selected ones.
        out, line: `BatchArrays` and the row of the example, changed in place; its prediction slots
            from index `slot` on are filled.
    """
    ids = out.input_ids[line]
    n = np.int64(0)
    for k in range(taken):
        n = replace_token(key, n, ids, scratch.places[scratch.chosen[k]], rule)
