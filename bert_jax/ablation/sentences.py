"""What an ablation has shown and what not, in sentences."""

import math
from collections.abc import Callable

from bert_jax.ablation.results import Results
from bert_jax.ablation.statistics import FEWEST_SEEDS, Difference, Interval
from bert_jax.errors import count

_SEEDS = (5, 10, 20)


def verdicts(results: Results) -> list[str]:
    """Returns one sentence for each variant, on the primary measure."""
    judged, found = results.verdicts, results.primary
    lines = []
    for variant in results.ablation.variants[1:]:
        name = variant.name
        if name not in found:
            lines.append(f"{name}: no seed has ended in both this variant and the reference.")
            continue
        verdict, difference = judged[name], found[name]
        if difference.seeds < FEWEST_SEEDS:
            text = (
                f"no verdict with {count(difference.seeds, 'seed')}; at least {FEWEST_SEEDS} are "
                "needed"
            )
        elif verdict.shown is None:
            own, theirs = (len(results.failed(n)) for n in (name, results.ablation.reference))
            runs = f"{count(own, 'run')} of it failed, {theirs} of the reference"
            text = f"no verdict in its favour: {runs}"
        elif verdict.shown:
            text = _shown(difference, verdict.adjusted_p)
        else:
            text = _not_shown(difference)
        lines.append(f"{name}: {text}.")
    return lines


def _shown(difference: Difference, p: float) -> str:
    better = "better" if difference.mean < 0 else "worse"
    return (
        f"{better} than the reference by {abs(difference.mean):.4f} nat, between "
        f"{between(difference.interval)} (p = {p:.2g} after Holm's correction, "
        f"{count(difference.seeds, 'seed')})"
    )


def _not_shown(difference: Difference) -> str:
    return (
        f"not distinguishable at this budget: between {between(difference.interval)} nat; a power "
        f"of 80 % would need a difference of: {by_seeds(difference.detectable)} nat"
    )


def by_seeds(value: Callable[[int], float], digits: int = 4) -> str:
    """Returns what a number of seeds gives: "5 seeds 0.0041, 10 seeds 0.0033, 20 seeds 0.0026"."""
    return ", ".join(f"{n} seeds {value(n):.{digits}f}" for n in _SEEDS)


def between(interval: Interval) -> str:
    """Returns "−0.012 and +0.019"."""
    return f"{signed(interval.low)} and {signed(interval.high)}"


def signed(value: float) -> str:
    """Returns a number with its sign, a true minus, and four decimals."""
    if math.isinf(value):
        return "−∞" if value < 0 else "+∞"  # noqa: RUF001
    return f"{value:+.4f}".replace("-", "−")  # noqa: RUF001


def excluded(results: Results) -> list[str]:
    """Returns one sentence for each run that is in no mean."""
    return [f"{name} is in no mean: {why}." for name, why in results.excluded.items()]


def told(results: Results) -> list[str]:
    """Returns the verdicts, and which runs are in no mean."""
    return [*verdicts(results), *excluded(results)]


def progress(results: Results) -> str:
    """Returns how many runs have ended."""
    done, total = len(results.measured), len(results.runs)
    left = "" if done == total else "; the others are missing here"
    return f"{done} of {count(total, 'run')} trained and measured{left}"
