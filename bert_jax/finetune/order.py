"""The order of an epoch's examples, and the rows into which the examples of a batch are packed.

`strata`: the examples, sorted by length, are cut into as many strata as a batch has examples, each
is permuted, and batch b has element b of every stratum. So all batches have about the same lengths
and fill the same number of rows. Where the number of examples is no multiple of the batch size,
some strata, drawn in each epoch, have one example more: the last batch of the epoch is smaller.
Every example occurs once in an epoch.
"""

from typing import Literal

import numpy as np

from bert_jax.data_pipeline.random.counter_rng import ORDER, fold_key, permute, stream_key
from bert_jax.data_pipeline.random.numba_jit import compiled

Order = Literal["strata", "shuffle"]


def epoch_order(
    lengths: np.ndarray, batch_size: int, how: Order, seed: int, epoch: int
) -> np.ndarray:
    """Returns all examples in the order of an epoch, int64 [E]; a batch is `batch_size` of them.

    lengths: int [E], tokens of each.
    """
    count, key = len(lengths), stream_key(seed, 0, epoch, ORDER)
    if how == "shuffle":
        return permute(key, np.arange(count), count)
    full, rest = divmod(count, batch_size)
    sizes = np.full(batch_size, full)
    sizes[permute(np.uint64(fold_key(key, batch_size)), np.arange(rest), batch_size)] += 1
    ends = np.cumsum(sizes)
    by_length = np.argsort(lengths, kind="stable")
    order = np.empty(count, np.int64)
    larger = 0
    for stratum, (size, end) in enumerate(zip(sizes.tolist(), ends.tolist(), strict=True)):
        if not size:
            continue
        own = permute(np.uint64(fold_key(key, stratum)), np.arange(size), size)
        places = np.arange(size) * batch_size + stratum
        if size > full:  # its last element is in the smaller batch
            places[-1] = full * batch_size + larger
            larger += 1
        order[places] = by_length[end - size + own]
    return order


@compiled
def pack_batches(lengths, batch_size, row_tokens, most_examples, rows):
    """Packs each batch of examples into rows, best-fit decreasing.

    Writes the row of each example into `rows`, int64 like `lengths`, which are in the order of an
    epoch. Returns the most rows of a batch, and the most examples of a row.
    """
    most_rows, most_in_row = 0, 0
    for first in range(0, len(lengths), batch_size):
        end = min(first + batch_size, len(lengths))
        room = np.full(end - first, row_tokens, np.int64)
        inside = np.zeros(end - first, np.int64)
        opened = 0
        for place in np.argsort(-lengths[first:end], kind="mergesort"):
            length, best = lengths[first + place], -1
            for row in range(opened):
                fits = room[row] >= length and inside[row] < most_examples
                if fits and (best < 0 or room[row] < room[best]):
                    best = row
            if best < 0:
                best = opened
                opened += 1
            room[best] -= length
            inside[best] += 1
            rows[first + place] = best
            most_in_row = max(most_in_row, inside[best])
        most_rows = max(most_rows, opened)
    return most_rows, most_in_row
