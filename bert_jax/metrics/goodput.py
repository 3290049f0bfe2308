"""Goodput: how much of the time since a run's first start went into steps that count.

Everything is read from the records of the run (docs/training.md), so any process can say it, while
the run trains or years after. The causes add up to the time from the first start to the last
record: within an attempt by its own account, between two by the clock.
"""

import bisect
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from bert_jax.metrics import attempts
from bert_jax.metrics.attempts import Account, Attempt
from bert_jax.runtime import console

PRODUCTIVE = "productive"
# Where time goes -> what people call it, in the order of tables.
CAUSES = {
    PRODUCTIVE: "steps that count",
    "repeated": "steps lost in a crash and done again",
    "skipped": "steps left out (not finite)",
    "start": "starting",
    "compile": "compiling",
    "restore": "restoring",
    "data": "waiting for data",
    "barrier": "waiting for other processes",
    "evaluate": "evaluating",
    "save": "saving",
    "down": "nobody at work",
    "other": "else, or not recorded",
}


@dataclasses.dataclass(frozen=True)
class Goodput:
    """Seconds by cause, one for every one of `CAUSES`."""

    seconds: dict[str, float]

    @property
    def wall(self) -> float:
        """Seconds since the first start."""
        return sum(self.seconds.values())

    @property
    def share(self) -> float:
        """Of the time, what went into steps that count; 0 where there was no time."""
        return self.seconds[PRODUCTIVE] / self.wall if self.wall else 0.0


def account(records: Iterable[dict[str, Any]]) -> Goodput:
    """Where the time of a run went, from its records in the order written.

    Steps beyond the one that a later attempt went on from are lost: their time is "repeated". What
    a killed process did after its last record nobody knows; it counts as "down" until the next
    start. Where the clock went backwards between two attempts, no time passed.
    """
    tries = attempts.split(records)
    seconds = dict.fromkeys(CAUSES, 0.0)
    for i, attempt in enumerate(tries):
        kept = min((later.first for later in tries[i + 1 :]), default=None)
        for cause, spent in _spent(attempt, kept).items():
            seconds[cause] += spent
        if i:
            seconds["down"] += max(0.0, attempt.begin - tries[i - 1].end)
    return Goodput(seconds)


def table(found: Goodput) -> tuple[Sequence[str], list[tuple[str, str, str]]]:
    """(header, rows) for people: the causes that took time, and all of it."""
    there = [c for c in CAUSES if c == PRODUCTIVE or round(found.seconds[c], 1) > 0]
    rows = [(CAUSES[c], found.seconds[c]) for c in there] + [("since the first start", found.wall)]
    return ("time", "share", "spent on"), [
        (_time(spent), f"{spent / found.wall:.1%}" if found.wall else "-", name)
        for name, spent in rows
    ]


def render(found: Goodput) -> str:
    """The table as text, under the figure it comes to."""
    return f"goodput {found.share:.1%}\n{console.table(*table(found))}"


def _spent(attempt: Attempt, kept: int | None) -> dict[str, float]:
    """Seconds of an attempt by cause; of its steps those up to `kept` count (None: all)."""
    seconds = dict(attempt.accounts[-1].seconds)
    steps = seconds.pop("step", 0.0)
    counted = steps if kept is None else _at(attempt.accounts, kept)
    left_out = {r["step"] for r in attempt.records if r["kind"] == "skipped"}
    skipped = sum(
        _at(attempt.accounts, step + 1) - _at(attempt.accounts, step)
        for step in left_out
        if kept is None or step < kept
    )
    rest = attempt.end - attempt.begin - steps - sum(seconds.values())
    seconds["other"] = seconds.get("other", 0.0) + max(0.0, rest)
    return {
        **seconds,
        PRODUCTIVE: counted - skipped,
        "repeated": steps - counted,
        "skipped": skipped,
    }


def _at(accounts: Sequence[Account], step: int) -> float:
    """Seconds of steps when `step` of them were done; between two accounts steps take the same."""
    steps = [account.step for account in accounts]
    seconds = [account.seconds.get("step", 0.0) for account in accounts]
    above = bisect.bisect_right(steps, step)
    if above == 0:
        return 0.0
    if above == len(steps) or steps[above - 1] == step:
        return seconds[above - 1]
    share = (step - steps[above - 1]) / (steps[above] - steps[above - 1])
    return seconds[above - 1] + share * (seconds[above] - seconds[above - 1])


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else console.clock(seconds)
