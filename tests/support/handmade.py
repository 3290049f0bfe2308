"""Batches made by hand: the same examples laid out one a row, or several a row."""

from collections.abc import Sequence

import numpy as np

VOCAB = 60
LENGTHS = (16, 9, 7, 12, 5, 11)  # of the examples, in turn: three fit into a row of 32


def _example(index: int, pair: bool) -> dict[str, np.ndarray]:
    """One example: ids, types, what is masked, and made-up targets of every objective."""
    rng = np.random.default_rng(index)
    length = LENGTHS[index % len(LENGTHS)]
    masked = np.sort(rng.choice(np.arange(1, length - 1), max(1, length // 5), replace=False))
    return {
        "ids": rng.integers(5, VOCAB, length),
        "types": (np.arange(length) > length // 2) * pair,
        "masked": masked,
        "labels": rng.integers(5, VOCAB, len(masked)),
        "pair": rng.integers(2),
        "source": index % 2,
        "offsets": rng.integers(0, 15, len(masked)),
        "in_span": rng.integers(0, 2, len(masked)),
    }


def batch(
    learned: Sequence[str], rows: Sequence[Sequence[int]], *, length: int, slots: int
) -> dict[str, np.ndarray]:
    """The arrays of a batch whose row b holds the examples numbered `rows[b]`, in that order.

    Args:
        learned: the objectives that want arrays.
        length: tokens of a row.
        slots: predictions of a row.
    """
    B, N = len(rows), max(map(len, rows))
    pair = "nsp" in learned or "sop" in learned
    tokens = ("input_ids", "token_type_ids", "example_ids", "position_ids")
    arrays = {name: np.zeros((B, length), np.int32) for name in tokens}
    predictions = ["masked_positions", "masked_labels"]
    if "rtd" in learned:
        arrays["draw_keys"] = np.zeros((B, slots), np.uint32)
    if "sbo" in learned:
        predictions += ["span_left", "span_right", "span_offsets"]
        arrays["span_weights"] = np.zeros((B, slots), np.float32)
    arrays |= {name: np.zeros((B, slots), np.int32) for name in predictions}
    arrays["masked_weights"] = np.zeros((B, slots), np.float32)
    if pair:
        for name in ("cls_positions", "pair_labels", "pair_sources"):
            arrays[name] = np.zeros((B, N), np.int32)
        arrays["pair_weights"] = np.zeros((B, N), np.float32)
    for b, indices in enumerate(rows):
        start = slot = 0
        for n, index in enumerate(indices):
            example = _example(index, pair)
            here, count = len(example["ids"]), len(example["masked"])
            span, chosen = slice(start, start + here), slice(slot, slot + count)
            assert span.stop <= length
            assert chosen.stop <= slots
            arrays["input_ids"][b, span] = example["ids"]
            arrays["token_type_ids"][b, span] = example["types"]
            arrays["example_ids"][b, span] = n + 1
            arrays["position_ids"][b, span] = np.arange(here)
            arrays["masked_positions"][b, chosen] = start + example["masked"]
            arrays["masked_labels"][b, chosen] = example["labels"]
            arrays["masked_weights"][b, chosen] = 1
            if "rtd" in learned:
                arrays["draw_keys"][b, chosen] = 1000003 * index + 7919 * example["masked"]
            if "sbo" in learned:
                arrays["span_left"][b, chosen] = start + example["masked"] - 1
                arrays["span_right"][b, chosen] = start + example["masked"] + 1
                arrays["span_offsets"][b, chosen] = example["offsets"]
                arrays["span_weights"][b, chosen] = example["in_span"]
            if pair:
                arrays["cls_positions"][b, n] = start
                arrays["pair_labels"][b, n] = example["pair"]
                arrays["pair_sources"][b, n] = example["source"]
                arrays["pair_weights"][b, n] = 1
            start, slot = span.stop, chosen.stop
    return arrays
