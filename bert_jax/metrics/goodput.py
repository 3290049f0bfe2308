"""Goodput: the share of wall time since a run's first start spent on productive steps.

Everything is read from the records of the run (docs/training_reference.md), so any process can
compute it, while the run trains or years later. The causes add up to the time from the first start
to the last record: within an attempt by its own account, between attempts by the clock.
"""

import bisect
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from bert_jax.metrics import attempts
from bert_jax.metrics.attempts import Account, Attempt
from bert_jax.runtime import console

PRODUCTIVE = "productive"
# Cause -> its label, in the order of tables.
CAUSES = {
    PRODUCTIVE: "productive steps",
    "repeated": "steps lost in a crash and repeated",
    "skipped": "skipped steps (not finite)",
    "start": "startup",
    "compile": "compilation",
    "restore": "checkpoint restore",
    "data": "waiting for data",
    "barrier": "waiting for other processes",
    "evaluate": "evaluation",
    "save": "checkpoint save",
    "down": "not running",
    "between": "other: planning, logging, Python",
    "other": "not recorded",
}


@dataclasses.dataclass(frozen=True)
class Goodput:
    """Seconds by cause, with an entry for each of `CAUSES`."""

    seconds: dict[str, float]

    @property
    def wall(self) -> float:
        """Seconds since the first start."""
        return sum(self.seconds.values())

    @property
    def share(self) -> float:
        """Productive share of the wall time; 0 if no time has passed."""
        return self.seconds[PRODUCTIVE] / self.wall if self.wall else 0.0


def account(records: Iterable[dict[str, Any]]) -> Goodput:
    """Wall time of a run by cause, from its records in the order written.

    Steps beyond the one that a later attempt resumed from are lost: their time is "repeated". Time
    after the last record of a killed process is unknown and counts as "down" until the next start.
    If the clock went backwards between two attempts, no time passed.
    """
    history = attempts.split(records)
    seconds = dict.fromkeys(CAUSES, 0.0)
    for i, attempt in enumerate(history):
        retained = min((later.first for later in history[i + 1 :]), default=None)
        for cause, spent in _seconds_by_cause(attempt, retained).items():
            seconds[cause] += spent
        if i:
            seconds["down"] += max(0.0, attempt.begin - history[i - 1].end)
    return Goodput(seconds)


def table(goodput: Goodput) -> tuple[Sequence[str], list[tuple[str, str, str]]]:
    """(header, rows) as text: the causes that took time, and the total."""
    seconds, wall = goodput.seconds, goodput.wall
    spent = {CAUSES[c]: seconds[c] for c in CAUSES if c == PRODUCTIVE or round(seconds[c], 1) > 0}
    spent["total since the first start"] = wall
    return ("time", "share", "spent on"), [
        (f"{s:.1f} s" if s < 100 else console.clock(s), f"{s / wall:.1%}" if wall else "-", name)
        for name, s in spent.items()
    ]


def render(goodput: Goodput) -> str:
    """The goodput and the table below it, as text."""
    return f"goodput {goodput.share:.1%}\n{console.table(*table(goodput))}"


def _seconds_by_cause(attempt: Attempt, retained: int | None) -> dict[str, float]:
    """Seconds of an attempt by cause; its steps up to `retained` are productive (None: all)."""
    seconds = dict(attempt.accounts[-1].seconds)
    steps = seconds.pop("step", 0.0)
    counted = steps if retained is None else _step_seconds_at(attempt.accounts, retained)
    left_out = {r["step"] for r in attempt.records if r["kind"] == "skipped"}
    skipped = sum(
        _step_seconds_at(attempt.accounts, step + 1) - _step_seconds_at(attempt.accounts, step)
        for step in left_out
        if retained is None or step < retained
    )
    rest = attempt.end - attempt.begin - steps - sum(seconds.values())
    seconds["between"], seconds["other"] = seconds.get("other", 0.0), max(0.0, rest)
    own = {PRODUCTIVE: counted - skipped, "repeated": steps - counted, "skipped": skipped}
    return {**seconds, **own}


def _step_seconds_at(accounts: Sequence[Account], step: int) -> float:
    """Step time in seconds after `step` steps, interpolated linearly between accounts."""
    steps = [account.step for account in accounts]
    seconds = [account.seconds.get("step", 0.0) for account in accounts]
    above = bisect.bisect_right(steps, step)
    if above == 0:
        return 0.0
    if above == len(steps) or steps[above - 1] == step:
        return seconds[above - 1]
    share = (step - steps[above - 1]) / (steps[above] - steps[above - 1])
    return seconds[above - 1] + share * (seconds[above] - seconds[above - 1])
