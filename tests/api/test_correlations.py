"""Correlations in resamples: scipy's of the rows that were drawn; the interval's coverage."""

import numpy as np
import pytest
from scipy import stats

from bert_jax.ablation.intervals import draw_weights
from bert_jax.api.correlations import correlation, resampled, weighted_ranks

PAIRS = 60


def test_a_resample_has_the_correlation_of_the_rows_drawn():
    draw = np.random.default_rng(5)
    scores = draw.integers(0, 6, PAIRS) / 2  # with ties
    models = [scores + draw.normal(size=PAIRS), np.round(scores + 2 * draw.normal(size=PAIRS))]
    found = resampled(scores, models, 40)
    ((_, weights),) = draw_weights(1, PAIRS, 40, np.random.default_rng(0))
    for resample, counts in enumerate(weights.astype(int)):
        rows = np.repeat(np.arange(PAIRS), counts)
        for model, values in enumerate(models):
            spearman = stats.spearmanr(scores[rows], values[rows]).statistic
            pearson = stats.pearsonr(scores[rows], values[rows]).statistic
            np.testing.assert_allclose(found["spearman"][model, resample], spearman, atol=1e-12)
            np.testing.assert_allclose(found["pearson"][model, resample], pearson, atol=1e-12)


def test_equal_values_have_no_correlation():
    weights = np.ones((1, 4))
    ranks = weighted_ranks(np.full(4, 2.0), weights)
    assert ranks.tolist() == [[2.5] * 4]
    assert np.isnan(correlation(ranks, np.arange(4.0)[None], weights)).all()


@pytest.mark.slow
def test_the_interval_holds_the_true_correlation():
    """95 % of 200 samples, within what 200 can show."""
    draw, true, held = np.random.default_rng(1), 0.6, 0
    for _ in range(200):
        x = draw.normal(size=100)
        y = true * x + (1 - true**2) ** 0.5 * draw.normal(size=100)
        low, high = np.quantile(resampled(x, [y], 400)["pearson"][0], [0.025, 0.975])
        held += low <= true <= high
    assert held >= 180
