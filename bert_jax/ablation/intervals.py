"""Intervals of 95 % and p-values of a mean: Student's t, Satterthwaite's, the multi-bootstrap; of
a share: Wilson's."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from scipy import stats

LEVEL: Final = 0.95
ALPHA: Final = 1 - LEVEL
_BLOCK: Final = 2**21  # documents drawn at a time, 8 bytes each in a few arrays


# How often each seed [R, S] and each document [R, D] is drawn in R resamples.
Weights: TypeAlias = tuple[np.ndarray, np.ndarray]


class Interval(NamedTuple):
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def holding(self, *others: "Interval") -> "Interval":
        """Returns the interval that holds this one and the others."""
        lows, highs = zip(self, *others, strict=True)
        return Interval(min(lows), max(highs))


class Estimate(NamedTuple):
    """A mean with its 95 % interval, and the two-sided p-value of zero."""

    mean: float
    interval: Interval
    p: float


class Part(NamedTuple):
    """An independent part of the variance of a mean, estimated with degrees of freedom."""

    variance: float
    freedom: float


def check_finite(what: str, values: Sequence[float] | np.ndarray) -> None:
    """Raises ValueError, naming the first, if values or their squares are not finite: NaN compares
    as "no difference", and infinity has no interval."""
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(np.square(np.asarray(values, np.float64)))
    if bad.any():
        first = tuple(np.argwhere(bad)[0].tolist())
        where = ", ".join(map(str, first))
        raise ValueError(
            f"{what} [{where}] is {np.asarray(values)[first]:g}: {int(bad.sum()):,} of "
            f"{bad.size:,} are not finite, or too large to be squared"
        )


def student_t(values: Sequence[float] | np.ndarray) -> Estimate:
    """Returns the mean with Student's t interval over values; unbounded for a single one.
    ValueError if one is not finite."""
    check_finite("value", values)
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Estimate(mean, Interval(-np.inf, np.inf), 1.0)
    return _with_t(mean, float(np.std(values, ddof=1)) / count**0.5, count - 1)


def wilson(share: float, count: int) -> Interval:
    """Returns the score interval of a share of `count` independent cases (Wilson 1927, J. Am. Stat.
    Assoc. 22, 209-212): within 0 and 1, and not empty where all cases are alike."""
    z = float(stats.norm.ppf(1 - ALPHA / 2))
    middle = share + z * z / (2 * count)
    half = z * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    low, high = ((middle + side * half) / (1 + z * z / count) for side in (-1, 1))
    return Interval(max(low, 0.0), min(high, 1.0))


def satterthwaite(mean: float, parts: Sequence[Part]) -> Estimate:
    """Returns a mean whose variance is the sum of parts, with the t interval of Satterthwaite's
    degrees of freedom (1946, Biometrics Bulletin 2, 110-114); unbounded if a part has none."""
    if not all(part.freedom > 0 for part in parts):
        return Estimate(mean, Interval(-np.inf, np.inf), 1.0)
    variance = sum(part.variance for part in parts)
    if not variance:
        return _with_t(mean, 0.0, min(part.freedom for part in parts))
    # Shares rather than variances, whose squares underflow.
    spread = sum((part.variance / variance) ** 2 / part.freedom for part in parts)
    return _with_t(mean, variance**0.5, 1 / spread)


def _with_t(mean: float, error: float, freedom: float) -> Estimate:
    half = float(stats.t.ppf(1 - ALPHA / 2, freedom)) * error
    score = abs(mean) / error if error else np.inf if mean else 0.0
    p = 2 * float(stats.t.sf(score, freedom))
    return Estimate(mean, Interval(mean - half, mean + half), p)


def draw_weights(
    seeds: int, documents: int, resamples: int, rng: np.random.Generator
) -> Iterator[Weights]:
    """Yields how often each seed and each document is drawn, with replacement, in blocks of
    resamples that bound the memory."""
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
    share on the other side of zero, and at least 1 / R. ValueError if one is not finite."""
    check_finite("resample", values)
    low, high = np.quantile(values, [ALPHA / 2, 1 - ALPHA / 2])
    share = min(np.mean(values <= 0), np.mean(values >= 0))
    p = min(1.0, max(2 * float(share), 1 / len(values)))
    return Estimate(float(values.mean()), Interval(float(low), float(high)), p)
