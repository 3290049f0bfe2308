"""The attempts at a run: from the start of its processes to their end, as its records tell.

Runs of earlier versions have no "start" records; there an attempt ends where the run was stopped or
where steps are done again.
"""

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

from bert_jax.metrics.records import is_finite
from bert_jax.runtime.activity import ACTIVITIES

Record = dict[str, Any]

_LAST = ("stopped", "lost", "finished")
# Written by a start that may not have come to its "start" record, or belonging to no attempt.
_NEUTRAL = ("quarantined", "adopted")


@dataclasses.dataclass(frozen=True)
class Account:
    """Seconds by activity since an attempt began, when it had done so many steps of the run."""

    step: int
    seconds: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One start of the run. Times are seconds since the epoch, by the clock of the first host."""

    records: tuple[Record, ...]  # at least one, in the order written
    first: int  # the step it went on from
    begin: float
    accounts: tuple[Account, ...]  # of the beginning, and as time went by; at least one

    @property
    def last(self) -> int:
        """Steps of the run that were done when it ended, as far as is recorded."""
        return max(self.first, *(r["step"] for r in self.records if r["kind"] != "skipped"))

    @property
    def end(self) -> float:
        """When the last sign of it was written."""
        return max(record["time"] for record in self.records)

    @property
    def closing(self) -> Record | None:
        """The record that says why it ended; None while it goes on, or if it was killed."""
        return next((r for r in reversed(self.records) if r["kind"] in _LAST), None)


def split(records: Iterable[Record]) -> list[Attempt]:
    """The attempts that the records of a run tell of, in order; records without time are left out.

    records: as `metrics.records` yields them.
    """
    groups: list[list[Record]] = []
    for record in records:
        if record["kind"] in _NEUTRAL or not is_finite(record.get("time")):
            continue
        if not groups or _begins(record, groups[-1]):
            groups.append([])
        groups[-1].append(record)
    attempts: list[Attempt] = []
    for group in groups:
        attempts.append(_attempt(group, attempts[-1] if attempts else None))
    return attempts


def _begins(record: Record, before: list[Record]) -> bool:
    if record["kind"] == "start":
        return True
    if any(one["kind"] in _LAST for one in before):
        return record["kind"] != "goodput"
    if before[0]["kind"] == "start" or record["kind"] != "train":
        return False
    return any(one["kind"] == "train" and one["step"] >= record["step"] for one in before)


def _attempt(group: list[Record], before: Attempt | None) -> Attempt:
    head = group[0]
    told = [r for r in group if isinstance(r.get("seconds"), dict)]
    if head["kind"] == "start":
        first = head["step"]
        spent = _seconds(head) if head in told else {}
        begin = head["time"] - sum(spent.values())
        start = Account(first, spent)
    else:
        first, stretch = _guess(group, before)
        begin = head["time"] - stretch
        start = Account(first, {})
    later = [r for r in told if r is not head]
    accounts = [Account(r["step"], _seconds(r)) for r in later] or _from_train(group, start)
    return Attempt(tuple(group), first, begin, tuple(_growing([start, *accounts])))


def _growing(accounts: list[Account]) -> list[Account]:
    """Without those that have fewer steps, or less time for them, than the one before: damage."""
    kept = accounts[:1]
    for account in accounts[1:]:
        steps = [one.seconds.get("step", 0.0) for one in (kept[-1], account)]
        if account.step >= kept[-1].step and steps[1] >= steps[0]:
            kept.append(account)
    return kept


def _guess(group: list[Record], before: Attempt | None) -> tuple[int, float]:
    """The step that an attempt without "start" went on from; seconds from there to a record."""
    head, first = group[0], 0
    train = next((r for r in group if r["kind"] == "train"), head)
    if before is not None:
        first = min(before.last, head["step"])
        logged = [r["step"] for r in before.records if r["kind"] == "train"]
        closed = before.closing is not None
        if not closed and logged:
            # Killed: the first stretch was as long as any other one.
            gaps = [b - a for a, b in itertools.pairwise([before.first, *logged])]
            first = max(0, head["step"] - min(gaps))
    speed = train.get("step_seconds")
    return first, (head["step"] - first) * speed if is_finite(speed) else 0.0


def _from_train(group: list[Record], start: Account) -> list[Account]:
    """What the speeds in "train" records tell where no account was kept later: time of steps."""
    accounts = [start]
    for record in group:
        if record["kind"] == "train" and is_finite(record.get("step_seconds")):
            steps = max(0, record["step"] - accounts[-1].step)
            spent = accounts[-1].seconds.get("step", 0.0) + steps * record["step_seconds"]
            accounts.append(Account(record["step"], {**start.seconds, "step": spent}))
    return accounts[1:]


def _seconds(record: Record) -> dict[str, float]:
    """Seconds by activity; one that this version does not know counts as other."""
    known: dict[str, float] = {}
    for name, value in record["seconds"].items():
        if is_finite(value) and value > 0:
            name = name if name in ACTIVITIES else "other"
            known[name] = known.get(name, 0.0) + value
    return known
