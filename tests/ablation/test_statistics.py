"""The statistics of ablations: against other programs, and in simulated reports.

goldens/statistics.npz: `multibootstrap` of google-research/language (multiberts/multibootstrap.py,
c040a31) with pairs of seeds, its draws and what it returned; `multipletests(p, method="holm")` of
statsmodels 0.15.0.
"""

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from bert_jax.ablation import statistics

GOLDEN = Path(__file__).resolve().parents[1] / "goldens" / "statistics.npz"
SEEDS, DOCUMENTS, EXAMPLES = 5, 100, 5  # of a simulated report; examples in each document


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as file:
        return dict(file)


def counted(drawn: np.ndarray, items: int) -> np.ndarray:
    return np.stack([np.bincount(row, minlength=items) for row in drawn]).astype(float)


def test_the_multi_bootstrap_is_that_of_google_research(golden):
    losses, seeds = golden["losses"], golden["seeds"].max() + 1
    sums = losses[seeds:] - losses[:seeds]
    examples = losses.shape[1]
    found = statistics.weighted_means(
        sums,
        np.ones(examples),
        counted(golden["seeds"], seeds),
        counted(golden["examples"], examples),
    )
    pairs = golden["pairs"]
    np.testing.assert_allclose(found, pairs[:, 1] - pairs[:, 0], rtol=0, atol=1e-12)
    interval = statistics.of_resamples(found).interval
    np.testing.assert_allclose(interval, golden["interval"], rtol=0, atol=1e-12)


def test_holm_is_that_of_statsmodels(golden):
    found = statistics.holm(golden["holm_p"])
    np.testing.assert_allclose(found, golden["holm_adjusted"], rtol=0, atol=1e-15)
    assert statistics.holm([]) == []


def test_student_t_of_known_values():
    """Of 1, 2, 3, 4, 5: 3 ± 2.776 · sqrt(2.5 / 5), from a printed table of t."""
    mean, (low, high), p = statistics.student_t([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (mean, low + high) == (3.0, pytest.approx(6.0))
    assert high - mean == pytest.approx(2.776 * 0.5**0.5, rel=2e-4)
    assert p == pytest.approx(0.0132, abs=1e-4)
    assert statistics.student_t([1.0, 1.0]) == (1.0, (1.0, 1.0), 0.0)
    assert statistics.student_t([0.0, 0.0]) == (0.0, (0.0, 0.0), 1.0)
    assert statistics.student_t([2.0]) == (2.0, (-math.inf, math.inf), 1.0)


def test_a_measure_is_a_ratio_and_its_documents_are_resampled_whole():
    """Examples of a document that all say the same are one observation, not five."""
    rng = np.random.default_rng(17)
    documents = np.repeat(np.arange(20), 5)
    of_document = rng.normal(size=20)
    values = np.tile(of_document[documents], (4, 1))
    counts = rng.integers(1, 9, 100).astype(float)
    sums = statistics.by_document(values * counts, documents, 20)
    weights = statistics.by_document(counts, documents, 20)
    found = statistics.compare(sums, weights)
    assert found.mean == pytest.approx((values[0] * counts).sum() / counts.sum())
    assert found.student.low == pytest.approx(found.student.high)  # no difference between seeds
    apart = statistics.compare(values * counts, counts)
    width, narrow = (x.bootstrap.high - x.bootstrap.low for x in (found, apart))
    assert width > 1.7 * narrow
    assert width == pytest.approx(2 * 1.96 * found.document_sd, rel=0.1)


def test_documents_without_predictions_change_nothing():
    rng = np.random.default_rng(3)
    sums, counts = rng.normal(size=(3, 8)), np.ones(8)
    padded = np.pad(sums, ((0, 0), (0, 4)))
    more = statistics.compare(padded, np.pad(counts, (0, 4)))
    assert more == statistics.compare(sums, counts)


def test_the_same_seed_gives_the_same_interval_in_any_blocks(monkeypatch):
    sums, counts = np.random.default_rng(1).normal(size=(4, 30)), np.ones(30)
    one = statistics.compare(sums, counts, resamples=500)
    assert statistics.compare(sums, counts, resamples=500) == one
    assert statistics.compare(sums, counts, resamples=500, seed=1) != one
    monkeypatch.setattr(statistics, "_BLOCK", 100)
    drawn = list(statistics.draw_weights(4, 30, 500, np.random.default_rng(0)))
    assert len(drawn) == 167
    assert sum(len(seeds) for seeds, _ in drawn) == 500
    assert all((documents.sum(1) == 30).all() for _, documents in drawn)


def test_nothing_to_compare_is_an_error():
    with pytest.raises(ValueError, match="0 seeds"):
        statistics.compare(np.zeros((0, 3)), np.ones(3))
    with pytest.raises(ValueError, match="0 predictions"):
        statistics.compare(np.zeros((2, 3)), np.zeros(3))


def test_how_many_standard_deviations_few_seeds_show():
    """By power in a simulation: a t-test finds the factor in 80 % of repetitions."""
    rng = np.random.default_rng(5)
    for seeds in (3, 5, 10, 20):
        shift = statistics.seeds_factor(seeds)
        values = rng.normal(shift, 1.0, (4000, seeds))
        found = [statistics.student_t(row).p <= 0.05 for row in values]
        assert np.mean(found) == pytest.approx(0.8, abs=0.02), seeds
    with pytest.raises(ValueError, match="at least 3"):
        statistics.seeds_factor(2)


def test_a_bootstrap_of_five_seeds_is_too_narrow_and_student_t_is_not():
    rng = np.random.default_rng(1)
    found = [
        statistics.compare(rng.normal(size=(5, 1)), np.ones(1), resamples=500) for _ in range(1500)
    ]
    bootstrap = np.mean([not each.bootstrap.excludes_zero for each in found])
    student = np.mean([not each.student.excludes_zero for each in found])
    assert bootstrap == pytest.approx(0.85, abs=0.025)
    assert student == pytest.approx(0.95, abs=0.015)


def simulated(rng: np.random.Generator, effect: float) -> statistics.Difference:
    """A comparison of 5 seeds on 500 examples in 100 documents with a true difference."""
    per_seed = rng.normal(0, 0.01, (SEEDS, 1, 1))
    per_document = rng.normal(0, 0.03, (1, DOCUMENTS, 1))
    noise = rng.normal(0, 0.1, (SEEDS, DOCUMENTS, EXAMPLES))
    values = effect + per_seed + per_document + noise
    counts = np.full(DOCUMENTS, float(EXAMPLES))
    return statistics.compare(values.sum(2), counts, resamples=1000)


def test_in_1000_reports_few_null_and_almost_all_planted_differences_are_shown():
    rng = np.random.default_rng(2106_16163)
    of_seeds = math.hypot(0.01, 0.1 / (DOCUMENTS * EXAMPLES) ** 0.5)
    planted = 2 * statistics.detectable(of_seeds, 0.03 / DOCUMENTS**0.5, SEEDS)
    shown = {"null": 0, "planted": 0}
    for _ in range(1000):
        differences = {"null": simulated(rng, 0.0), "planted": simulated(rng, planted)}
        for name, verdict in statistics.verdicts(differences).items():
            shown[name] += bool(verdict.shown)
    assert shown["null"] <= 70
    assert shown["planted"] >= 950


def test_a_verdict_needs_both_intervals_the_correction_and_three_seeds():
    counts = np.ones(200)
    rng = np.random.default_rng(0)

    def made(seeds: int, effect: float, seed_sd: float, document_sd: float) -> np.ndarray:
        return (
            effect
            + seed_sd * np.linspace(-1, 1, seeds)[:, None]
            + document_sd * np.repeat([1.0, -1.0], 100)
            + rng.normal(0, 1e-4, (seeds, 200))
        )

    def of(*case: float) -> statistics.Difference:
        return statistics.compare(made(*case), counts)

    assert statistics.verdicts({"a": of(5, 1.0, 0.1, 0.1)})["a"].shown is True
    two = of(5, 0.1, 0.01, 5.0), of(3, 0.1, 0.06, 0.01)
    one_each = [(each.bootstrap.excludes_zero, each.student.excludes_zero) for each in two]
    assert one_each == [(False, True), (True, False)]
    assert [statistics.verdicts({"a": each})["a"].shown for each in two] == [False, False]
    few = statistics.verdicts({"few": of(2, 1.0, 0.1, 0.1), "a": of(5, 1.0, 0.1, 0.1)})
    assert few["few"].shown is None
    assert math.isnan(few["few"].adjusted_p)
    alone = statistics.verdicts({"a": of(5, 1.0, 0.1, 0.1)})["a"]
    assert few["a"].adjusted_p == alone.adjusted_p  # too few seeds are not corrected for
    weak = of(5, 0.05, 0.05, 0.01)
    assert weak.bootstrap.excludes_zero
    assert weak.student.excludes_zero
    assert statistics.verdicts({"weak": weak})["weak"].shown is True
    many = {f"null {i}": of(5, 0.0, 0.05, 0.1) for i in range(20)}
    assert statistics.verdicts({"weak": weak, **many})["weak"].shown is False


@pytest.mark.slow
def test_ten_thousand_resamples_of_ten_seeds_and_20000_examples_in_1_gib():
    """Their time: `python benchmarks/ablation_statistics.py`."""
    sums = np.random.default_rng(0).normal(size=(10, 20_000))
    tracemalloc.start()
    statistics.compare(sums, np.ones(20_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**30
