"""The difference between two variants of a run, with two intervals and a verdict.

Runs are paired by seed, and measured on the same held-out examples. A measure is a sum over
examples divided by a count of predictions, so a comparison is a matrix of summed differences
[S seeds, D documents] and the documents' counts [D].

Two intervals of 95 %, because each is too narrow where the other is right:

    multi-bootstrap   resamples seeds and whole documents (Sellam et al. 2022, arXiv 2106.16163,
                      section 3); with few seeds too narrow: of 5 seeds it covers 85 %
    Student's t       over the seeds' differences; too narrow where the held-out text is small,
                      because all seeds are measured on the same documents

A difference is shown if both exclude zero and the larger of the two p-values, after Holm's
correction for all variants, is at most 5 %.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from scipy import optimize, stats

LEVEL: Final = 0.95
POWER: Final = 0.8
RESAMPLES: Final = 10_000
FEWEST_SEEDS: Final = 3  # below, the seeds' spread is unknown: no verdict
_ALPHA: Final = 1 - LEVEL
_BLOCK: Final = 2**21  # documents drawn at a time, 8 bytes each in a few arrays


class Interval(NamedTuple):
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def holding(self, other: "Interval") -> "Interval":
        """Returns the interval that holds both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))


class Estimate(NamedTuple):
    """A mean with its 95 % interval, and the two-sided p-value of zero."""

    mean: float
    interval: Interval
    p: float


@dataclass(frozen=True)
class Difference:
    """Of a variant to the reference in one measure."""

    mean: float
    seeds: int  # that both have
    documents: int
    bootstrap: Interval
    student: Interval
    p: float  # the larger one of the two methods
    seed_sd: float  # of the paired difference between seeds
    document_sd: float  # of the mean, from the choice of documents

    @property
    def interval(self) -> Interval:
        """The interval that holds both."""
        return self.bootstrap.holding(self.student)

    def detectable(self, seeds: int) -> float:
        """Returns the difference that this many seeds show with a power of 80 %."""
        return detectable(self.seed_sd, self.document_sd, seeds)


@dataclass(frozen=True)
class Verdict:
    """Of a difference among those of all variants."""

    adjusted_p: float  # after Holm's correction; NaN with too few seeds
    shown: bool | None  # None: too few seeds for a verdict


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
    """Returns the mean difference over seeds, with both intervals.

    Args:
        sums: [S, D] variant minus reference, summed over each document.
        counts: [D] predictions in each document.
        resamples: of the multi-bootstrap.
        seed: of its draws.

    Raises:
        ValueError: no seeds, or no predictions.
    """
    if not len(sums) or not counts.sum():
        raise ValueError(f"nothing to compare: {len(sums)} seeds, {counts.sum():g} predictions")
    asked = np.flatnonzero(counts)  # the others weigh nothing in any resample
    sums, counts = sums[:, asked], counts[asked]
    by_seed = sums.sum(1) / counts.sum()
    student, drawn = student_t(by_seed), np.empty(resamples)
    done = 0
    for weights in draw_weights(len(sums), len(counts), resamples, np.random.default_rng(seed)):
        block = weighted_means(sums, counts, *weights)
        drawn[done : done + len(block)] = block
        done += len(block)
    bootstrap = of_resamples(drawn)
    residuals = sums.mean(0) - student.mean * counts
    return Difference(
        mean=student.mean,
        seeds=len(sums),
        documents=len(counts),
        bootstrap=bootstrap.interval,
        student=student.interval,
        p=max(bootstrap.p, student.p),
        seed_sd=float(by_seed.std(ddof=1)) if len(sums) > 1 else float("nan"),
        document_sd=float(np.sqrt((residuals**2).sum()) / counts.sum()),
    )


def draw_weights(
    seeds: int, documents: int, resamples: int, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields how often each seed [R, S] and each document [R, D] is drawn, with replacement, in
    blocks of R resamples that bound the memory."""
    rows = max(1, _BLOCK // documents)
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        yield _counted(rng, count, seeds), _counted(rng, count, documents)


def _counted(rng: np.random.Generator, rows: int, items: int) -> np.ndarray:
    """Returns how often each item is among `items` draws, in each row: float64 [rows, items]."""
    drawn = rng.integers(0, items, (rows, items), dtype=np.int32)
    cells = (drawn + np.arange(rows, dtype=np.int64)[:, None] * items).ravel()
    return np.bincount(cells, minlength=rows * items).reshape(rows, items).astype(np.float64)


def weighted_means(
    sums: np.ndarray, counts: np.ndarray, seed_weights: np.ndarray, document_weights: np.ndarray
) -> np.ndarray:
    """Returns the mean over seeds of sum / count in each resample: [R].

    Args:
        sums: [S, D] of each seed and document. counts: [D].
        seed_weights, document_weights: [R, S] and [R, D], how often each is drawn.
    """
    by_seed = document_weights @ sums.T / (document_weights @ counts)[:, None]
    return (by_seed * seed_weights).sum(1) / seed_weights.sum(1)


def of_resamples(values: np.ndarray) -> Estimate:
    """Returns the mean and the percentile interval of resampled differences [R]; p is twice the
    share on the other side of zero, and at least 1 / R."""
    low, high = np.quantile(values, [_ALPHA / 2, 1 - _ALPHA / 2])
    share = min(np.mean(values <= 0), np.mean(values >= 0))
    p = min(1.0, max(2 * float(share), 1 / len(values)))
    return Estimate(float(values.mean()), Interval(float(low), float(high)), p)


def student_t(values: Sequence[float] | np.ndarray) -> Estimate:
    """Returns the mean with Student's t interval over values; unbounded for a single one."""
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Estimate(mean, Interval(-np.inf, np.inf), 1.0)
    error = float(np.std(values, ddof=1)) / count**0.5
    half = float(stats.t.ppf(1 - _ALPHA / 2, count - 1)) * error
    score = abs(mean) / error if error else np.inf if mean else 0.0
    p = 2 * float(stats.t.sf(score, count - 1))
    return Estimate(mean, Interval(mean - half, mean + half), p)


def holm(p_values: Iterable[float]) -> list[float]:
    """Returns p-values adjusted for their number: Holm 1979, Scand. J. Statist. 6, 65-70."""
    values = np.array(list(p_values), np.float64)
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
    return adjusted.tolist()


def verdicts(differences: Mapping[str, Difference]) -> dict[str, Verdict]:
    """Returns the verdict on the primary measure of each variant; those with too few seeds have
    none, and do not count in the correction."""
    judged = [name for name, found in differences.items() if found.seeds >= FEWEST_SEEDS]
    adjusted = dict(zip(judged, holm(differences[name].p for name in judged), strict=True))
    found = {}
    for name, difference in differences.items():
        p = adjusted.get(name)
        both = difference.bootstrap.excludes_zero and difference.student.excludes_zero
        shown = None if p is None else both and p <= _ALPHA
        found[name] = Verdict(float("nan") if p is None else p, shown)
    return found


def detectable(seed_sd: float, document_sd: float, seeds: int) -> float:
    """Returns the difference that `seeds` seeds show with a power of 80 %: Student's t for the
    seeds, a normal distribution for the documents, added in squares.

    Args:
        seed_sd: standard deviation of the paired difference between seeds.
        document_sd: standard deviation of the mean difference from the choice of documents.
    """
    of_documents = stats.norm.ppf(1 - _ALPHA / 2) + stats.norm.ppf(POWER)
    return float(np.hypot(seeds_factor(seeds) * seed_sd, of_documents * document_sd))


@functools.cache
def seeds_factor(seeds: int) -> float:
    """Returns the mean, in standard deviations, that a t-test of `seeds` values at 5 % finds with a
    power of 80 %, by the noncentral t distribution; ValueError for fewer than `FEWEST_SEEDS`."""
    if seeds < FEWEST_SEEDS:
        raise ValueError(f"{seeds} seeds: at least {FEWEST_SEEDS} are needed")
    freedom = seeds - 1
    critical = stats.t.ppf(1 - _ALPHA / 2, freedom)

    def missing(shift: float) -> float:  # the other tail is below 1e-6 there
        return float(stats.nct.sf(critical, freedom, shift)) - POWER

    return float(optimize.brentq(missing, 1.0, 10.0)) / seeds**0.5
