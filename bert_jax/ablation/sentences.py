"""Conclusions of an ablation, in sentences: which differences are significant.

A difference is always that of a variant minus the reference: of losses in nats, below zero is
better.
"""

import math
from collections.abc import Callable, Iterator

from bert_jax.ablation import record
from bert_jax.ablation.intervals import Interval
from bert_jax.ablation.learned import unlearned
from bert_jax.ablation.results import Results
from bert_jax.ablation.statistics import (
    FEW_DOCUMENTS,
    FEWEST_DOCUMENTS,
    FEWEST_SEEDS,
    Difference,
)
from bert_jax.errors import count

_SEEDS = (5, 10, 20)


def verdicts(results: Results) -> list[str]:
    """Returns one sentence for each variant, on the primary measure."""
    return [
        f"{variant.name}: {_verdict(results, variant.name)}."
        for variant in results.ablation.variants[1:]
    ]


def _verdict(results: Results, name: str) -> str:
    if why := _not_judged(results, name, "verdict"):
        return why
    verdict, difference = results.verdicts[name], results.primary[name]
    if verdict.shown:
        text = _shown(results, difference, verdict.adjusted_p)
    else:
        text = _not_shown(results, difference)
    return text + _few_documents(difference) + results.contrast(name).text


def against(results: Results) -> Iterator[str]:
    """Yields one sentence for each further comparison of two variants, on the primary measure."""
    names = {variant.name for variant in results.ablation.variants}
    for compared in results.ablation.compared:
        if compared not in names:
            yield f"{compared} (exploratory): {_exploratory(results, compared)}."


def _exploratory(results: Results, compared: str) -> str:
    if why := _not_judged(results, compared, "comparison"):
        return why
    found = results.of_primary[compared]
    return (
        f"{signed(found.mean)} nat, between {between(found.interval)} ({_seeds(results, found)})"
        f"{_few_documents(found)}{results.contrast(compared).text}"
    )


def _not_judged(results: Results, compared: str, what: str) -> str:
    """Returns why nothing is said of a comparison, see `Ablation.compared`; "" if it is.

    what: of what there is none, such as "verdict".
    """
    if other := results.other(compared):
        verb = "is" if len(other) == 1 else "are"
        return f"no {what}: {', '.join(other)} {verb} not as planned"
    variant, reference = results.ablation.compared[compared]
    theirs = "the reference" if reference == results.ablation.reference else reference
    if compared not in results.of_primary:
        return f"no seed has ended in both this variant and {theirs}"
    difference = results.of_primary[compared]
    if difference.seeds < FEWEST_SEEDS:
        seeds = _seeds(results, difference)
        return f"no {what} with {seeds}; at least {FEWEST_SEEDS} are needed"
    if not difference.judged:
        return too_few_documents(difference, what)
    if difference.interval.excludes_zero and results.failed_more(compared, difference):
        failed, others = (len(results.failed(name)) for name in (variant, reference))
        side = "in its favour" if difference.mean < 0 else "against it"
        return f"no {what} {side}: {count(failed, 'run')} of it failed, {others} of {theirs}"
    return ""


def _seeds(results: Results, difference: Difference) -> str:
    """Returns "5 seeds", or "3 of 5 planned seeds" where others are not measured or count not."""
    planned = len(results.ablation.seeds)
    if difference.seeds == planned:
        return count(planned, "seed")
    return f"{difference.seeds} of {count(planned, 'planned seed')}"


def _shown(results: Results, difference: Difference, p: float) -> str:
    better = "better" if difference.mean < 0 else "worse"
    return (
        f"{better} than the reference: {signed(difference.mean)} nat, between "
        f"{between(difference.interval)} (p = {p:.2g} after Holm's correction, "
        f"{_seeds(results, difference)})"
    )


def _not_shown(results: Results, difference: Difference) -> str:
    seeds = _seeds(results, difference)
    of_seeds = f" ({seeds})" if difference.seeds < len(results.ablation.seeds) else ""
    return (
        f"not distinguishable at this budget{of_seeds}: between {between(difference.interval)} "
        f"nat; a power of 80 % would need a difference of: {by_seeds(difference.detectable)} nat"
    )


def too_few_documents(difference: Difference, what: str = "verdict") -> str:
    """Returns why a difference with too few held-out documents has no verdict."""
    return (
        f"no {what} with {_effective(difference)}; at least {FEWEST_DOCUMENTS} are needed, which "
        "more held-out text gives"
    )


def _few_documents(difference: Difference) -> str:
    """Returns the warning behind a verdict, "" where there are documents enough."""
    if difference.effective_documents >= FEW_DOCUMENTS:
        return ""
    return (
        f"; measured on only {_effective(difference)}: below {FEW_DOCUMENTS} a few unusual "
        "documents can decide"
    )


def _effective(difference: Difference) -> str:
    """Returns "17.3 effective documents (40 of unequal length)", never rounded up."""
    number, documents = math.floor(difference.effective_documents * 10) / 10, difference.documents
    unequal = f" ({documents:,} of unequal length)" if number < documents else ""
    return f"{number:g} effective document{'' if number == 1 else 's'}{unequal}"


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


def not_learned(results: Results) -> Iterator[str]:
    """Yields one sentence for each objective that a variant has not learned."""
    for found in unlearned(results):
        yield (
            f"{found.variant}: {found.title} was not learned: {found.loss:.4f} nat, a constant "
            f"prediction {found.constant:.4f}; the difference is between "
            f"{between(found.difference.interval)}."
        )


def added_seeds(results: Results) -> Iterator[str]:
    """Yields one sentence for the seeds that were added at a time after the first report."""
    for added in record.added_seeds(results.record):
        seeds = ", ".join(map(str, added.seeds))
        first, time = (f" ({day})" if day else "" for day in (added.reported, added.time))
        yield (
            f"Seeds added after the first report{first}: {seeds}{time}. Intervals and p are "
            "valid for a number of seeds fixed in advance; adding seeds until a difference is "
            "significant gives more than 5 % false positives."
        )


def missing_seeds(results: Results) -> Iterator[str]:
    """Yields what planned seeds are missing, and what reports were made before all were measured.

    Who looks after every seed and ends once something is shown, has chosen the number of seeds by
    what they show, as one who adds them.
    """
    ended = ("measured", "diverged")
    waiting = {run.seed for run in results.runs if results.states[run.name].state not in ended}
    if waiting and results.seen:
        seeds = ", ".join(str(seed) for seed in results.ablation.seeds if seed in waiting)
        yield (
            f"Runs of planned seeds are missing: {seeds}. Intervals and p are valid for all "
            "planned seeds; stopping once a difference is significant gives more than 5 % false "
            "positives."
        )
    planned = len(results.ablation.seeds)
    earlier = [len(seen) for seen in record.seen(results.record) if seen != results.seen]
    if numbers := ", ".join(str(number) for number in earlier if number < planned):
        yield f"Earlier reports had, of {planned} planned seeds: {numbers}."


def excluded(results: Results) -> list[str]:
    """Returns one sentence for each run that is in no mean, and how to have one that is planned."""
    lines = [f"{name} is left out of all means: {why}." for name, why in results.excluded.items()]
    if results.unplanned:
        lines.append(
            "Remove the folder of a run that is not as planned, with the .npz file beside it, and "
            "`bert-jax ablate run` makes the run again."
        )
    return lines


def software(results: Results) -> Iterator[str]:
    """Yields one sentence for each version or device that runs do not share."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, each in results.measured.items():
        for package, version in each.software.items():
            found.setdefault(package, {}).setdefault(version, []).append(name)
    for package, by_version in found.items():
        if len(by_version) > 1:
            parts = (f"{version} ({', '.join(runs)})" for version, runs in by_version.items())
            yield f"Not all runs were made with the same {package}: {'; '.join(parts)}."


def conclusions(results: Results) -> list[str]:
    """Returns the verdicts, and all that limits what they say."""
    return [
        *verdicts(results),
        *against(results),
        *not_learned(results),
        *added_seeds(results),
        *missing_seeds(results),
        *excluded(results),
        *software(results),
    ]


def progress(results: Results) -> str:
    """Returns how many runs have ended."""
    done, total = len(results.measured), len(results.runs)
    left = "" if done == total else "; the others are missing here"
    return f"{done} of {count(total, 'run')} trained and measured{left}"
