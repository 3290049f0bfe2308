"""`frequency` masking as released with DistilBERT (huggingface/transformers, research project
`distillation`, `distiller.py`): rare tokens are predicted more often. Of the tokens of an example,
special tokens counted, mask_rate are selected, rounded up, without replacement: each with a
probability in proportion to count^-frequency_exponent of those left, where count says how often the
token is in the training text, at least 1. Special tokens, [UNK] too, are not selected.

One difference: DistilBERT draws the positions of all examples on a GPU together, so the number in
one of them varies. Here an example has its own, which does not depend on the others in its batch.
"""

import decimal
import functools
from typing import Final

import numpy as np

from bert_jax.data_pipeline.masking.masking_settings import MaskingSettings
from bert_jax.data_pipeline.masking.mode import Mode, round_up
from bert_jax.data_pipeline.random.counter_rng import below_sum, draw, fold_key
from bert_jax.data_pipeline.random.numba_jit import compiled

_MOST: Final = 2**44  # weight of a token that occurs once: the sum over a row fits 63 bits


@compiled
def select_by_weight(key, rule, scratch, count, wanted):
    """Selects `wanted` tokens one by one, or all that have a weight if these are fewer.

    Each is drawn from the weights of those left. Their sums are in a Fenwick tree (P. Fenwick, "A
    new data structure for cumulative frequency tables", 1994), which finds one and takes it out in
    log2(count) steps: tree[i] is the sum of the i & -i weights before weight i. Integers, so that
    the same tokens are drawn on every machine.
    """
    key, weights = fold_key(key, 0), scratch.weights
    tree = np.zeros(count + 1, np.int64)
    total = taken = np.int64(0)
    for i in range(1, count + 1):
        total += weights[i - 1]
        tree[i] += weights[i - 1]
        if i + (i & -i) <= count:
            tree[i + (i & -i)] += tree[i]
    widest = np.int64(1)
    while 2 * widest <= count:
        widest *= 2
    while taken < wanted and total > 0:
        rest = below_sum(draw(key, taken), total)
        k, step = np.int64(0), widest
        while step > 0:
            if k + step <= count and tree[k + step] <= rest:
                k += step
                rest -= tree[k]
            step >>= 1
        scratch.marked[k] = 1
        scratch.chosen[taken] = k
        taken += 1
        total -= weights[k]
        above = k + 1
        while above <= count:
            tree[above] -= weights[k]
            above += above & -above
    return taken


@functools.cache
def _weight(count: int, exponent: float) -> int:
    """Returns count^-exponent in units of 1 / _MOST, at least 1: by decimal arithmetic, since the
    last bits of floating-point powers depend on the machine."""
    with decimal.localcontext(decimal.Context(prec=20)):
        return max(1, round(_MOST * decimal.Decimal(count) ** -decimal.Decimal(repr(exponent))))


def _weights(settings: MaskingSettings, counts: np.ndarray) -> np.ndarray:
    """The weights of all ids."""
    different, of_id = np.unique(np.maximum(counts, 1), return_inverse=True)
    weights = [_weight(count, settings.frequency_exponent) for count in different.tolist()]
    return np.array(weights, np.int64)[of_id]


# Not exact: of an example of [UNK] alone nothing is selected.
MODE: Final = Mode(select_by_weight, wanted=round_up, exact=False, id_weights=_weights)
