"""The difference between two variants of a run, with three intervals and a verdict.

Runs are paired by seed, and measured on the same held-out examples. A measure is a sum over
examples divided by a count of predictions, so a comparison is a matrix of summed differences
[S seeds, D documents] and the documents' counts [D].

Three intervals of 95 %; the interval that holds all three decides:

    multi-bootstrap   resamples seeds and whole documents (Sellam et al. 2022, arXiv 2106.16163,
                      section 3); too narrow with few seeds, and with few documents
    Student's t       over the seeds' differences; too narrow where the held-out text is small,
                      because all seeds are measured on the same documents
    Satterthwaite     adds the variances that seeds and documents give, each with its degrees of
                      freedom; documents count by their predictions, as effective documents

A difference is shown if the interval excludes zero and the largest of the three p-values, after
Holm's correction for all planned variants, is at most 5 %. How often it covers the truth:
`benchmarks/ablation_coverage.py`.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import optimize, stats

from bert_jax.ablation.intervals import (
    ALPHA,
    Interval,
    Part,
    Weights,
    check_finite,
    draw_weights,
    of_resamples,
    satterthwaite,
    student_t,
    weighted_means,
)
from bert_jax.metrics import spread

POWER: Final = 0.8
RESAMPLES: Final = 10_000
FEWEST_SEEDS: Final = 3  # below, the seeds' spread is unknown: no verdict
FEWEST_DOCUMENTS: Final = 10  # effective; below, no verdict
FEW_DOCUMENTS: Final = 30  # effective; below, a verdict has a warning


@dataclass(frozen=True)
class Difference:
    """The difference of a variant to the reference in one measure."""

    mean: float
    seeds: int  # that both have
    documents: int
    effective_documents: float  # (sum of counts)² / sum of counts²: documents of equal size
    bootstrap: Interval
    student: Interval
    satterthwaite: Interval
    p: float  # the largest one of the three methods
    seed_sd: float  # of the paired difference between seeds; NaN of one seed
    document_sd: float  # of the mean, from the choice of documents; NaN of one document

    @property
    def interval(self) -> Interval:
        """The interval that holds all three, which decides."""
        return self.satterthwaite.holding(self.bootstrap, self.student)

    @property
    def judged(self) -> bool:
        """Returns whether there are seeds and documents enough for a verdict."""
        return self.seeds >= FEWEST_SEEDS and self.effective_documents >= FEWEST_DOCUMENTS

    def detectable(self, seeds: int) -> float:
        """Returns the difference that this many seeds show with a power of 80 %."""
        return detectable(self.seed_sd, self.document_sd, seeds, self.effective_documents)


@dataclass(frozen=True)
class Verdict:
    """The verdict on a difference, among those of all variants."""

    adjusted_p: float  # after Holm's correction; NaN without a verdict
    shown: bool | None  # None: no verdict, of too few seeds or documents


def by_document(values: np.ndarray, documents: np.ndarray, count: int) -> np.ndarray:
    """Returns sums over the examples of each document.

    Args:
        values: [..., N examples].
        documents: int [N], the document of each example, below `count`.
    """
    rows = values.reshape(-1, values.shape[-1])
    sums = [np.bincount(documents, row, minlength=count) for row in rows]
    return np.reshape(sums, (*values.shape[:-1], count))


def compare(
    sums: np.ndarray, counts: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0
) -> Difference:
    """Returns the mean difference over seeds, with its intervals.

    Args:
        sums: [S, D] variant minus reference, summed over each document.
        counts: [D] predictions in each document.
        resamples: of the multi-bootstrap.
        seed: of its draws.

    Raises:
        ValueError: no seeds, no predictions, or a sum that is not finite.
    """
    if not len(sums) or not counts.sum():
        raise ValueError(f"nothing to compare: {len(sums)} seeds, {counts.sum():g} predictions")
    check_finite("the sum of [seed, document]", sums)
    check_finite("the count of document", counts)
    asked = np.flatnonzero(counts)  # the others weigh nothing in any resample
    drawn = draw_weights(len(sums), len(asked), resamples, np.random.default_rng(seed))
    return compare_resampled(sums[:, asked], counts[asked], drawn)


def compare_resampled(sums: np.ndarray, counts: np.ndarray, drawn: Iterable[Weights]) -> Difference:
    """Returns `compare` of finite sums and positive counts, given what the bootstrap draws."""
    by_seed, effective = sums.sum(1) / counts.sum(), spread.effective_documents(counts)
    bootstrap = of_resamples(
        np.concatenate([weighted_means(sums, counts, *weights) for weights in drawn])
    )
    student = student_t(by_seed)
    seed_sd = float(by_seed.std(ddof=1)) if len(sums) > 1 else float("nan")
    document_sd = spread.document_sd(sums.mean(0), counts)
    added = satterthwaite(
        student.mean,
        (Part(seed_sd**2 / len(sums), len(sums) - 1), Part(document_sd**2, effective - 1)),
    )
    return Difference(
        mean=student.mean,
        seeds=len(sums),
        documents=len(counts),
        effective_documents=effective,
        bootstrap=bootstrap.interval,
        student=student.interval,
        satterthwaite=added.interval,
        p=max(bootstrap.p, student.p, added.p),
        seed_sd=seed_sd,
        document_sd=document_sd,
    )


def holm(p_values: Iterable[float], tests: int | None = None) -> list[float]:
    """Returns p-values adjusted for the number of tests: Holm 1979, Scand. J. Statist. 6, 65-70.

    tests: planned ones; those without a p-value count as if theirs were the largest. None: as many
    as there are p-values.

    Raises:
        ValueError: a p-value is not finite, and would take a place in the order; or there are more
            of them than tests.
    """
    values = np.array(list(p_values), np.float64)
    check_finite("p-value", values)
    tests = len(values) if tests is None else tests
    if tests < len(values):
        raise ValueError(f"{len(values)} p-values of {tests} tests")
    order = np.argsort(values, kind="stable")
    factors = tests - np.arange(len(values))
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
    return adjusted.tolist()


def verdicts(differences: Mapping[str, Difference], tests: int) -> dict[str, Verdict]:
    """Returns the verdict on the primary measure of each variant; those with too few seeds or
    documents have none.

    tests: number of planned variants. All count in the correction, measured or not: which of them
    have a verdict may depend on what was seen before.
    """
    judged = [name for name, found in differences.items() if found.judged]
    adjusted = dict(zip(judged, holm([differences[name].p for name in judged], tests), strict=True))
    found = dict.fromkeys(differences, Verdict(float("nan"), None))
    for name, p in adjusted.items():
        shown = differences[name].interval.excludes_zero and p <= ALPHA
        found[name] = Verdict(p, shown)
    return found


def detectable(seed_sd: float, document_sd: float, seeds: int, effective_documents: float) -> float:
    """Returns the difference that `seeds` seeds show with a power of 80 %: that of a t-test
    over seeds and of one over documents, added in squares; infinite where documents are too few for
    a verdict.

    Args:
        seed_sd: standard deviation of the paired difference between seeds.
        document_sd: standard deviation of the mean difference from the choice of documents.
    """
    if effective_documents < FEWEST_DOCUMENTS:
        return float("inf")
    of_documents = _shift(effective_documents - 1) * document_sd
    return float(np.hypot(seeds_factor(seeds) * seed_sd, of_documents))


def seeds_factor(seeds: int) -> float:
    """Returns the mean, in standard deviations, that a t-test of `seeds` values at 5 % finds with a
    power of 80 %; ValueError for fewer than `FEWEST_SEEDS`."""
    if seeds < FEWEST_SEEDS:
        raise ValueError(f"{seeds} seeds: at least {FEWEST_SEEDS} are needed")
    return _shift(seeds - 1) / seeds**0.5


@functools.cache
def _shift(freedom: float) -> float:
    """Returns the mean, in standard errors, that a t-test at 5 % finds with a power of 80 %, by the
    noncentral t distribution."""
    critical = stats.t.ppf(1 - ALPHA / 2, freedom)

    def missing(shift: float) -> float:  # the other tail is below 1e-6 there
        return float(stats.nct.sf(critical, freedom, shift)) - POWER

    return float(optimize.brentq(missing, 1.0, 10.0))
