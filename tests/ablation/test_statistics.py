"""The statistics of ablations: against other programs, and in simulated reports.

goldens/statistics.npz: `multibootstrap` of google-research/language (multiberts/multibootstrap.py,
c040a31) with pairs of seeds, its draws and what it returned; `multipletests(p, method="holm")` of
statsmodels 0.15.0.
"""

import functools
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from bert_jax.ablation import intervals, statistics
from bert_jax.ablation.intervals import Part
from bert_jax.metrics.spread import effective_documents

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
    found = intervals.weighted_means(
        sums,
        np.ones(examples),
        counted(golden["seeds"], seeds),
        counted(golden["examples"], examples),
    )
    pairs = golden["pairs"]
    np.testing.assert_allclose(found, pairs[:, 1] - pairs[:, 0], rtol=0, atol=1e-12)
    interval = intervals.of_resamples(found).interval
    np.testing.assert_allclose(interval, golden["interval"], rtol=0, atol=1e-12)


def test_holm_is_that_of_statsmodels(golden):
    found = statistics.holm(golden["holm_p"])
    np.testing.assert_allclose(found, golden["holm_adjusted"], rtol=0, atol=1e-15)
    assert statistics.holm([]) == []


def test_student_t_of_known_values():
    """Of 1, 2, 3, 4, 5: 3 ± 2.776 · sqrt(2.5 / 5), from a printed table of t."""
    mean, (low, high), p = intervals.student_t([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (mean, low + high) == (3.0, pytest.approx(6.0))
    assert high - mean == pytest.approx(2.776 * 0.5**0.5, rel=2e-4)
    assert p == pytest.approx(0.0132, abs=1e-4)
    assert intervals.student_t([1.0, 1.0]) == (1.0, (1.0, 1.0), 0.0)
    assert intervals.student_t([0.0, 0.0]) == (0.0, (0.0, 0.0), 1.0)
    assert intervals.student_t([2.0]) == (2.0, (-math.inf, math.inf), 1.0)


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
    monkeypatch.setattr(intervals, "_BLOCK", 100)
    drawn = list(intervals.draw_weights(4, 30, 500, np.random.default_rng(0)))
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
        values = rng.normal(statistics.seeds_factor(seeds), 1.0, (10_000, seeds))
        p = scipy.stats.ttest_1samp(values, 0.0, axis=1).pvalue
        assert np.mean(p <= 0.05) == pytest.approx(0.8, abs=0.01), seeds
    with pytest.raises(ValueError, match="at least 3"):
        statistics.seeds_factor(2)


def test_a_bootstrap_of_five_seeds_is_too_narrow_and_student_t_is_not():
    rng, weights = np.random.default_rng(1), drawn(5, 1, 500)
    found = [
        statistics.compare_resampled(rng.normal(size=(5, 1)), np.ones(1), weights)
        for _ in range(1500)
    ]
    bootstrap = np.mean([not each.bootstrap.excludes_zero for each in found])
    student = np.mean([not each.student.excludes_zero for each in found])
    assert bootstrap == pytest.approx(0.85, abs=0.025)
    assert student == pytest.approx(0.95, abs=0.015)
    assert not any(each.judged or each.interval.excludes_zero for each in found)  # one document


def test_of_equal_documents_satterthwaite_is_student_t_over_them():
    """Where seeds agree; unbounded with one document, where nothing says how documents differ."""
    of_documents = np.linspace(-1, 1, 12) + 0.3
    found = statistics.compare(np.tile(of_documents * 7, (4, 1)), np.full(12, 7.0))
    expected = intervals.student_t(of_documents)
    assert found.satterthwaite == pytest.approx(expected.interval, rel=1e-12)
    assert found.effective_documents == found.documents == 12
    assert found.document_sd == pytest.approx(np.std(of_documents, ddof=1) / 12**0.5)
    assert found.p == pytest.approx(expected.p)
    alone = statistics.compare(np.ones((4, 1)), np.ones(1))
    assert alone.satterthwaite == (-math.inf, math.inf)


def test_where_documents_agree_satterthwaite_is_student_t_over_seeds():
    found = statistics.compare(np.tile([[1.0], [2.0], [4.0]], 20), np.ones(20))
    assert found.satterthwaite == pytest.approx(found.student, rel=1e-9)


def test_degrees_of_freedom_are_those_of_welch():
    """The t-test of two samples of unequal variance adds two variances in the same way."""
    one, other = np.array([3.0, 9.0, 4.0]), np.array([1.0, 1.5, 0.2, 0.9, 1.1, 0.4])
    parts = [Part(float(x.var(ddof=1)) / len(x), len(x) - 1) for x in (one, other)]
    found = intervals.satterthwaite(float(one.mean() - other.mean()), parts)
    welch = scipy.stats.ttest_ind(one, other, equal_var=False)
    assert found.p == pytest.approx(welch.pvalue, rel=1e-12)
    assert found.interval == pytest.approx(tuple(welch.confidence_interval()), rel=1e-12)


def test_the_spread_of_unequal_documents_is_estimated_without_bias():
    """`document_sd` against the spread of the means themselves, over reports."""
    rng = np.random.default_rng(8)
    counts = np.round(1000 * np.exp(1.5 * scipy.stats.norm.ppf(np.linspace(0.02, 0.98, 40))))
    reports = [
        statistics.compare_resampled(
            rng.normal(size=(1, 40)) * counts, counts, [(np.ones((2, 1)), np.ones((2, 40)))]
        )
        for _ in range(1500)
    ]
    true = (counts**2).sum() / counts.sum() ** 2
    assert np.var([each.mean for each in reports]) == pytest.approx(true, rel=0.1)
    assert np.mean([each.document_sd**2 for each in reports]) == pytest.approx(true, rel=0.05)


@pytest.mark.parametrize(("seeds", "seed_sd"), [(3, 0.5), (8, 0.0)])
def test_the_interval_covers_the_truth_with_few_unequal_documents(seeds: int, seed_sd: float):
    """`benchmarks/ablation_coverage.py` has all sizes."""
    rng, held, reports = np.random.default_rng(30), 0, 0
    while reports < 1000:
        counts = np.round(1000 * rng.lognormal(0, 1.5, 40))
        if effective_documents(counts) < statistics.FEWEST_DOCUMENTS:
            continue
        sums = (rng.normal(size=40) + rng.normal(0, seed_sd, (seeds, 1))) * counts
        found = statistics.compare_resampled(sums, counts, drawn(seeds, 40, 500))
        held, reports = held + (not found.interval.excludes_zero), reports + 1
    assert held / reports >= 0.94 - 2 * (0.94 * 0.06 / reports) ** 0.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
def test_what_is_not_finite_is_refused_rather_than_no_difference(bad: float):
    """Also a value whose square is not."""
    sums, counts = np.zeros((3, 12)), np.ones(12)
    sums[1, 4] = bad
    with pytest.raises(
        ValueError, match=r"the sum of \[seed, document\] \[1, 4\] is .* 1 of 36 are"
    ):
        statistics.compare(sums, counts)
    with pytest.raises(ValueError, match=r"the count of document \[0\]"):
        statistics.compare(np.zeros((3, 12)), np.full(12, bad))
    for function in (intervals.student_t, intervals.of_resamples, statistics.holm):
        with pytest.raises(ValueError, match=r"\[2\] is .* 1 of 3 are not finite"):
            function(np.array([0.1, 0.2, bad]))


def simulated(rng: np.random.Generator, effect: float) -> statistics.Difference:
    """A comparison of 5 seeds on 500 examples in 100 documents with a true difference."""
    per_seed = rng.normal(0, 0.01, (SEEDS, 1, 1))
    per_document = rng.normal(0, 0.03, (1, DOCUMENTS, 1))
    noise = rng.normal(0, 0.1, (SEEDS, DOCUMENTS, EXAMPLES))
    values = effect + per_seed + per_document + noise
    counts = np.full(DOCUMENTS, float(EXAMPLES))
    return statistics.compare_resampled(values.sum(2), counts, drawn(SEEDS, DOCUMENTS, 1000))


@functools.cache
def drawn(seeds: int, documents: int, resamples: int) -> list[intervals.Weights]:
    """What `compare` draws, the same in all reports of a size."""
    rng = np.random.default_rng(0)
    return list(intervals.draw_weights(seeds, documents, resamples, rng))


def test_in_1000_reports_few_null_and_almost_all_planted_differences_are_shown():
    rng = np.random.default_rng(2106_16163)
    of_seeds = math.hypot(0.01, 0.1 / (DOCUMENTS * EXAMPLES) ** 0.5)
    planted = 2 * statistics.detectable(of_seeds, 0.03 / DOCUMENTS**0.5, SEEDS, DOCUMENTS)
    counted = {"null": 0, "planted": 0}
    for _ in range(1000):
        differences = {"null": simulated(rng, 0.0), "planted": simulated(rng, planted)}
        for name, verdict in statistics.verdicts(differences, 2).items():
            counted[name] += bool(verdict.shown)
    assert counted["null"] <= 70
    assert counted["planted"] >= 950


def made(seeds: int, effect: float, seed_sd: float, document_sd: float, documents: int = 200):
    """A comparison whose seeds and documents vary as said, the same in every call."""
    signs = np.resize([1.0, -1.0], documents)
    values = effect + seed_sd * np.linspace(-1, 1, seeds)[:, None] + document_sd * signs
    noise = np.random.default_rng(0).normal(0, 1e-4, (seeds, documents))
    return statistics.compare(values + noise, np.ones(documents), resamples=2000)


def shown(*differences: statistics.Difference) -> list[bool | None]:
    named = {str(number): each for number, each in enumerate(differences)}
    return [verdict.shown for verdict in statistics.verdicts(named, len(named)).values()]


def test_a_verdict_needs_all_intervals_the_correction_and_three_seeds():
    clear = made(5, 1.0, 0.1, 0.1)
    assert shown(clear) == [True]
    weak = made(5, 0.1, 0.01, 5.0), made(3, 0.1, 0.06, 0.01)
    one_each = [(each.bootstrap.excludes_zero, each.student.excludes_zero) for each in weak]
    assert one_each == [(False, True), (True, False)]
    assert [*shown(weak[0]), *shown(weak[1])] == [False, False]
    two = statistics.verdicts({"few": made(2, 1.0, 0.1, 0.1), "a": clear}, 2)
    assert two["few"].shown is None
    assert math.isnan(two["few"].adjusted_p)
    for tests in (2, 7):  # all planned variants are corrected for, with a difference or without
        found = statistics.verdicts({"a": clear}, tests)
        assert found["a"].adjusted_p == pytest.approx(tests * clear.p)
    assert two["a"].adjusted_p == pytest.approx(2 * clear.p)
    with pytest.raises(ValueError, match="2 p-values of 1 tests"):
        statistics.holm([0.1, 0.2], 1)
    near = made(5, 0.05, 0.05, 0.01)
    assert near.interval.excludes_zero
    assert shown(near) == [True]
    assert shown(near, *[made(5, 0.0, 0.05, 0.1)] * 20)[0] is False


def test_a_verdict_needs_ten_effective_documents():
    clear = {n: made(5, 1.0, 0.1, 0.1, documents=n) for n in (9, 10, 29)}
    assert [shown(each) for each in clear.values()] == [[None], [True], [True]]
    assert clear[9].interval.excludes_zero
    assert clear[9].detectable(5) == math.inf
    counts = np.r_[1000.0, np.ones(500)]  # one document of 501 is two thirds of the text
    long = statistics.compare(np.tile(counts, (5, 1)), counts, resamples=100)
    assert long.documents == 501
    assert long.effective_documents == pytest.approx(1500**2 / (1000**2 + 500))
    assert shown(long) == [None]


def test_a_difference_that_documents_alone_carry_is_not_shown_by_the_two_older_intervals():
    """Ten documents, seeds alike: the bootstrap excludes zero, t over ten documents does not."""
    of_documents = np.linspace(-1, 1, 10) + 0.42
    found = statistics.compare(np.tile(of_documents, (5, 1)), np.ones(10))
    assert found.bootstrap.excludes_zero
    assert found.student.excludes_zero
    assert not found.satterthwaite.excludes_zero
    assert not found.interval.excludes_zero
    assert found.p > 0.05
    assert shown(found) == [False]


@pytest.mark.parametrize(
    ("seeds", "seed_sd", "documents"), [(3, 0.0, 12), (3, 0.5, 40), (8, 0.2, 20)]
)
def test_the_detectable_difference_is_shown_with_the_power_that_it_says(
    seeds: int, seed_sd: float, documents: int
):
    rng, counts = np.random.default_rng(4), np.ones(documents)
    effect = statistics.detectable(seed_sd, documents**-0.5, seeds, documents)
    found = [
        statistics.compare_resampled(
            effect + rng.normal(size=documents) + rng.normal(0, seed_sd, (seeds, 1)) * counts,
            counts,
            drawn(seeds, documents, 500),
        )
        for _ in range(600)
    ]
    assert 0.75 <= np.mean([each.interval.excludes_zero for each in found]) <= 0.9


@pytest.mark.slow
def test_ten_thousand_resamples_of_ten_seeds_and_20000_examples_in_1_gib():
    """Their time: `python benchmarks/ablation_statistics.py`."""
    sums = np.random.default_rng(0).normal(size=(10, 20_000))
    tracemalloc.start()
    statistics.compare(sums, np.ones(20_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**30
