"""Attempts of a run, each from the start of its processes to their end, read from its records.

Runs of earlier versions have no "start" records; their attempts end where the run stopped or where
steps are repeated.
"""

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

from bert_jax.metrics.run_records import is_finite
from bert_jax.runtime.activity import ACTIVITIES

Record = dict[str, Any]

_END_KINDS = ("stopped", "lost", "finished")
# May be written before the "start" record of an attempt, or belong to no attempt.
_NEUTRAL = ("quarantined", "adopted")


@dataclasses.dataclass(frozen=True)
class Account:
    """Seconds by activity since an attempt began, at the time `step` steps of the run were done."""

    step: int
    seconds: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One start of the run. Times are seconds since the epoch, by the clock of the first host."""

    records: tuple[Record, ...]  # at least one, in the order written
    first: int  # the step it resumed from
    begin: float
    accounts: tuple[Account, ...]  # at the start, then over time; at least one

    @property
    def last(self) -> int:
        """Steps of the run done when it ended, as far as recorded."""
        return max([self.first, *(r["step"] for r in self.records if r["kind"] != "skipped")])

    @property
    def end(self) -> float:
        """Time of its last record."""
        return max(record["time"] for record in self.records)

    @property
    def closing(self) -> Record | None:
        """The record of why it ended; None while it is running, or if it was killed."""
        return next((r for r in reversed(self.records) if r["kind"] in _END_KINDS), None)


def split(records: Iterable[Record]) -> list[Attempt]:
    """The attempts in the records of a run, in order; records without a time are ignored."""
    groups: list[list[Record]] = []
    for record in records:
        if record["kind"] in _NEUTRAL or not is_finite(record.get("time")):
            continue
        if not groups or _starts_attempt(record, groups[-1]):
            groups.append([])
        groups[-1].append(record)
    attempts: list[Attempt] = []
    for group in groups:
        attempts.append(_attempt(group, attempts[-1] if attempts else None))
    return attempts


def _starts_attempt(record: Record, before: list[Record]) -> bool:
    if record["kind"] == "start":
        return True
    if any(earlier["kind"] in _END_KINDS for earlier in before):
        return record["kind"] != "goodput"
    if before[0]["kind"] == "start" or record["kind"] != "train":
        return False
    return any(r["kind"] == "train" and r["step"] >= record["step"] for r in before)


def _attempt(group: list[Record], before: Attempt | None) -> Attempt:
    head = group[0]
    timed = [r for r in group if isinstance(r.get("seconds"), dict)]
    if head["kind"] == "start":
        start = Account(head["step"], _seconds(head) if head in timed else {})
        elapsed = sum(start.seconds.values())
    else:
        first, elapsed = _infer_start(group, before)
        start = Account(first, {})
    later = [Account(r["step"], _seconds(r)) for r in timed if r is not head]
    accounts = _monotonic([start, *(later or _from_train(group, start))])
    return Attempt(tuple(group), start.step, head["time"] - elapsed, tuple(accounts))


def _monotonic(accounts: list[Account]) -> list[Account]:
    """Drops accounts with fewer steps or less step time than the previous one: they are damaged."""
    valid = accounts[:1]
    for account in accounts[1:]:
        last = valid[-1]
        more = account.seconds.get("step", 0.0) >= last.seconds.get("step", 0.0)
        if account.step >= last.step and more:
            valid.append(account)
    return valid


def _infer_start(group: list[Record], before: Attempt | None) -> tuple[int, float]:
    """The step an attempt without "start" resumed from, and the seconds to its first record."""
    head, first = group[0], 0
    train = next((r for r in group if r["kind"] == "train"), head)
    if before is not None:
        first = min(before.last, head["step"])
        logged = [r["step"] for r in before.records if r["kind"] == "train"]
        if before.closing is None and logged:
            # Killed: assume that its first logging interval was as long as the shortest one before.
            gaps = [b - a for a, b in itertools.pairwise([before.first, *logged])]
            first = max(0, head["step"] - min(gaps))
    speed = train.get("step_seconds")
    return first, (head["step"] - first) * speed if is_finite(speed) else 0.0


def _from_train(group: list[Record], start: Account) -> list[Account]:
    """Step time from the speeds in "train" records, for attempts without later accounts."""
    accounts = [start]
    for record in group:
        if record["kind"] == "train" and is_finite(record.get("step_seconds")):
            steps = max(0, record["step"] - accounts[-1].step)
            spent = accounts[-1].seconds.get("step", 0.0) + steps * record["step_seconds"]
            accounts.append(Account(record["step"], {**start.seconds, "step": spent}))
    return accounts[1:]


def _seconds(record: Record) -> dict[str, float]:
    """Seconds by activity; activities unknown to this version count as other."""
    known: dict[str, float] = {}
    for name, value in record["seconds"].items():
        if is_finite(value) and value > 0:
            name = name if name in ACTIVITIES else "other"
            known[name] = known.get(name, 0.0) + value
    return known
