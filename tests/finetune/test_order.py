"""The order of an epoch: every example once, one of each stratum of lengths in every batch."""

from collections import Counter

import numpy as np
import pytest

from bert_jax.finetune.order import epoch_order, pack, spread, strips_of_rows


def lengths_of(count: int, seed: int = 0) -> np.ndarray:
    return 3 + np.random.default_rng(seed).geometric(0.1, count).clip(max=60)


@pytest.mark.parametrize("how", ["strata", "shuffle"])
@pytest.mark.parametrize("count", [1, 5, 31, 32, 33, 64, 95, 1000, 1023])
def test_every_example_is_seen_once_an_epoch(count: int, how) -> None:
    lengths = lengths_of(count)
    for epoch in range(3):
        order = epoch_order(lengths, 32, how, 7, epoch)
        assert sorted(order.tolist()) == list(range(count))
        assert sorted(spread(order, lengths[:, None], 32, 64, 32, 1).tolist()) == list(range(count))


def test_an_order_depends_on_seed_and_epoch_alone() -> None:
    lengths = lengths_of(200)
    order = epoch_order(lengths, 32, "strata", 7, 1)
    np.testing.assert_array_equal(order, epoch_order(lengths, 32, "strata", 7, 1))
    assert (order != epoch_order(lengths, 32, "strata", 7, 2)).any()
    assert (order != epoch_order(lengths, 32, "strata", 8, 1)).any()


def test_a_batch_has_one_example_of_each_stratum() -> None:
    count, size = 1000, 32  # 31 full batches and one of 8
    lengths = lengths_of(count)
    order = epoch_order(lengths, size, "strata", 3, 0)
    rank = np.empty(count, np.int64)
    rank[np.argsort(lengths, kind="stable")] = np.arange(count)
    for batch in range(count // size):
        ranks = np.sort(rank[order[batch * size : (batch + 1) * size]])
        # Strata have 31 or 32 examples, so element k is between these bounds.
        assert (ranks >= 31 * np.arange(size)).all()
        assert (ranks <= 32 * (np.arange(size) + 1) - 1).all()
    assert len(order) - count // size * size == 8


def test_the_smaller_batch_has_another_set_of_strata_in_each_epoch() -> None:
    """Otherwise examples of some lengths would always be in the batch whose gradient is noisier."""
    lengths = np.arange(100)
    lasts = [np.sort(epoch_order(lengths, 32, "strata", 0, epoch)[96:] // 4) for epoch in range(8)]
    assert len({tuple(last.tolist()) for last in lasts}) > 4


def test_rows_hold_whole_examples_within_their_limits() -> None:
    lengths = lengths_of(32)
    rows, _ = pack(lengths[:, None], 64, 5, 1)
    assert np.bincount(rows, lengths).max() <= 64
    assert max(Counter(rows.tolist()).values()) <= 5
    assert set(rows.tolist()) == set(range(rows.max() + 1))
    # Best-fit decreasing leaves no two rows that would fit into one.
    sums, sizes = np.bincount(rows, lengths), np.bincount(rows)
    pairs = [(i, j) for i in range(len(sums)) for j in range(i)]
    assert all(sums[i] + sums[j] > 64 or sizes[i] + sizes[j] > 5 for i, j in pairs)


def test_a_batch_that_needs_a_row_more_exchanges_its_longest_example() -> None:
    lengths = np.array([10] * 6 + [30] + [8] * 21 + [10] * 4 + [9] * 8)
    order = np.arange(40)
    needed = [pack(lengths[order[i : i + 4], None], 40, 4, 1)[0].max() + 1 for i in range(0, 40, 4)]
    assert Counter(needed) == {1: 9, 2: 1}
    lengths = np.concatenate([lengths] * 3)
    lengths[[46, 86]] = 8  # one of 30 batches
    order = spread(np.arange(120), lengths[:, None], 4, 48, 4, 1)
    needed = [
        pack(lengths[order[i : i + 4], None], 48, 4, 1)[0].max() + 1 for i in range(0, 120, 4)
    ]
    assert sorted(order.tolist()) == list(range(120))
    assert Counter(needed) == {1: 30} or Counter(needed) == {1: 29, 2: 1}


def test_pairs_whose_longer_text_fills_a_strip_share_larger_rows() -> None:
    """A question of 14 tokens beside a paragraph of a whole row leaves nearly half of both empty;
    pairs of short texts, and batches of few rows, have rows of two strips as before."""
    paragraphs = np.stack([lengths_of(640).clip(max=20), np.full(640, 64)], axis=1)
    order, limits = epoch_order(paragraphs.sum(1), 256, "strata", 0, 0), (64, 256)

    def rows_with(strips: int) -> int:
        return int(pack(paragraphs[order[:256]], *limits, strips)[0].max()) + 1

    assert strips_of_rows(order, paragraphs, 256, *limits) == 8
    assert rows_with(8) * 8 < 0.7 * rows_with(2) * 2
    assert strips_of_rows(order, paragraphs, 64, *limits) == 4
    assert strips_of_rows(order, paragraphs, 16, *limits) == 2
    assert strips_of_rows(order, paragraphs[:, 1:], 256, *limits) == 1
    short = np.stack([lengths_of(640, seed).clip(max=12) for seed in (1, 2)], axis=1)
    assert strips_of_rows(order, short, 256, *limits) == 2
