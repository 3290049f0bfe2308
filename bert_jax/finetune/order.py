"""The order of an epoch's examples, and the rows into which the examples of a batch are packed.

`strata`: the examples, sorted by length, are cut into as many strata as a batch has examples, each
is permuted, and batch b has element b of every stratum. So all batches have about the same lengths
and fill the same number of rows. Where the number of examples is no multiple of the batch size,
some strata, drawn in each epoch, have one example more: the last batch of the epoch is smaller.
Every example occurs once in an epoch. `spread` then exchanges an example of the few batches that
would need a row more than the others.
"""

from typing import Final

import numpy as np

from bert_jax.config.task_settings import Order
from bert_jax.data_pipeline.random.counter_rng import ORDER, fold_key, permute, stream_key
from bert_jax.data_pipeline.random.numba_jit import compiled

_USUAL: Final = 0.95  # share of the batches that need as many rows, or fewer
_LARGER: Final = (2, 4)  # times as many strips in a row
_PLANNED: Final = 32  # batches by which the strips are chosen
_WORTH: Final = 0.95  # share of the positions that are left; else the gain is too small
_FEWEST_ROWS: Final = 8  # for each time; with fewer, many devices would read padding


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
def pack(lengths, row_tokens, most_examples, strips):
    """Packs the examples of a batch into rows, best-fit decreasing.

    A row has strips, and each sequence of an example lies in one of them.

    Args:
        lengths: int64 [E, C], tokens of the sequences of each example.
        row_tokens: of a strip.
        strips: of a row, C or more.

    Returns:
        The row of each example, [E], and the strip of each of its sequences, [E, C].
    """
    count, sequences = lengths.shape
    rows, places = np.empty(count, np.int64), np.empty((count, sequences), np.int64)
    room, inside = np.full((count, strips), row_tokens), np.zeros(count)
    opened = 0
    for place in np.argsort(-lengths.sum(1), kind="mergesort"):
        best = -1
        for row in range(opened):
            fuller = best < 0 or room[row].sum() < room[best].sum()
            if fuller and inside[row] < most_examples and _fits(lengths[place], room[row]):
                best = row
        if best < 0:
            best = opened
            opened += 1
        _place(lengths[place], room[best], places[place])
        inside[best] += 1
        rows[place] = best
    return rows, places


@compiled
def _fits(lengths, room):
    """Returns whether the sequences of an example fit into the strips of a row with this room."""
    return _place(lengths, room.copy(), np.empty(len(lengths), np.int64))


@compiled
def _place(lengths, room, strips):
    """Writes the strip of each sequence, best-fit decreasing, and takes its room; returns whether
    all of them found one."""
    for sequence in np.argsort(-lengths, kind="mergesort"):
        best = -1
        for strip in range(len(room)):
            fits = room[strip] >= lengths[sequence]
            if fits and (best < 0 or room[strip] < room[best]):
                best = strip
        if best < 0:
            return False
        room[best] -= lengths[sequence]
        strips[sequence] = best
    return True


def _num_rows(lengths: np.ndarray, row_tokens: int, most_examples: int, strips: int) -> int:
    """Returns how many rows the examples of a batch fill; arguments as of `pack`."""
    return int(pack(lengths, row_tokens, most_examples, strips)[0].max()) + 1


def strips_of_rows(
    order: np.ndarray,
    lengths: np.ndarray,
    batch_size: int,
    row_tokens: int,
    most_examples: int,
) -> int:
    """Returns how many strips a row has that is filled best: C, or some times as many.

    All sequences of an example are in one row, so that of two that nearly fill a strip each, the
    rest of both would stay empty. A row of more strips has room for the sequences of others, and
    costs nothing more for each position. Depends on the examples alone, whatever the devices and
    micro-batches, with which a run may be resumed.

    order, lengths, row_tokens, most_examples: as of `pack` and `spread`.
    """
    sequences = lengths.shape[1]
    starts = range(0, min(len(order), _PLANNED * batch_size), batch_size)

    def rows_with(strips: int) -> int:
        each = (order[start : start + batch_size] for start in starts)
        limits = row_tokens, most_examples, strips
        return max(_num_rows(lengths[batch], *limits) for batch in each)

    best = sequences
    least = rows_with(best) * best
    for times in _LARGER if sequences > 1 else ():
        strips = sequences * times
        rows = rows_with(strips)
        if rows >= _FEWEST_ROWS * times and rows * strips <= _WORTH * least:
            best, least = strips, rows * strips
    return best


def spread(
    order: np.ndarray,
    lengths: np.ndarray,
    batch_size: int,
    row_tokens: int,
    most_examples: int,
    strips: int,
) -> np.ndarray:
    """Returns the order of an epoch in which no batch needs more rows than nearly all do.

    The longest examples differ most, so that a few batches may need another row, which all batches
    would then have. Such a batch exchanges its longest example with that of a batch with few
    tokens.

    lengths, row_tokens, strips: as of `pack`.
    """
    order, full, totals = order.copy(), len(order) // batch_size, lengths.sum(1)
    batches = order[: full * batch_size].reshape(full, batch_size)

    def rows_of(batch: np.ndarray) -> int:
        return _num_rows(lengths[batch], row_tokens, most_examples, strips)

    needed = np.array([rows_of(batch) for batch in batches])
    usual = int(np.quantile(needed, _USUAL, method="higher")) if full else 0
    light = iter(np.argsort(totals[batches].sum(1), kind="stable").tolist())
    for heavy in np.flatnonzero(needed > usual).tolist():
        longest = int(totals[batches[heavy]].argmax())
        other = next(light)
        pair = batches[[heavy, other]]
        pair[:, longest] = pair[::-1, longest]
        if max(map(rows_of, pair)) <= usual:
            batches[[heavy, other]] = pair
    return order
