"""Margins of means over documents."""

import math

import numpy as np
import pytest

from bert_jax.metrics.spread import margin


@pytest.mark.parametrize(
    "counts", [[1e6, 1, 1], [1000, 3, 2, 2, 1], [1e9, *[1] * 40], [5, 0], [5]], ids=str
)
def test_one_document_beside_short_ones_has_no_margin(counts: list[float]) -> None:
    """They tell as much as fewer than two documents of one size."""
    sums = np.linspace(1, 3, len(counts)) * counts
    assert math.isnan(margin(sums, np.array(counts, float)))


def test_a_margin_is_of_the_size_of_its_values() -> None:
    counts = np.array([30.0, 20.0, 20.0, 10.0])
    assert 0 < margin(np.array([2.0, 2.1, 1.9, 2.2]) * counts, counts) < 0.3
    assert 0 < margin(np.array([10.0, 11.0]), np.array([5.0, 5.0])) < 2  # two equal documents
