"""The history of a job: states of its hosts, attempts, queued resources.

A value of each class is a record in the bucket (`job_records`).
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax.exit_codes import LOST, STOPPED
from bert_jax.launch.restarts import Restarts

# Of a host: it installs, waits for the next attempt, works at one, or has written its last line.
INSTALLING, READY, RUNNING, GONE = "installing", "ready", "running", "gone"


@dataclasses.dataclass(frozen=True)
class End:
    """The end of an attempt or a job: exit code, and the line that explains it."""

    code: int
    why: str


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One start of the job's processes on all hosts.

    boots: the agent of each host at the start; a host with another one has lost its process.
    code: the job's exit code, None while it runs.
    """

    boots: tuple[str, ...] = ()
    code: int | None = None
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The instructions of host 0 of a queued resource to the other hosts.

    final: set when no attempt follows. kill: the attempt whose remaining processes are killed.
    """

    attempts: tuple[Attempt, ...] = ()
    final: End | None = None
    kill: int = 0

    @property
    def is_running(self) -> bool:
        return bool(self.attempts) and self.attempts[-1].code is None

    @classmethod
    def from_json(cls, value: Any) -> "Plan":
        attempts = tuple(
            Attempt(**{**attempt, "boots": tuple(attempt["boots"])})
            for attempt in value["attempts"]
        )
        final = value["final"]
        return cls(attempts, End(**final) if final else None, value["kill"])

    def end_attempt(self, code: int, why: str) -> "Plan":
        """Returns the plan after the running attempt."""
        last = dataclasses.replace(self.attempts[-1], code=code, why=why)
        return dataclasses.replace(self, attempts=(*self.attempts[:-1], last))


@dataclasses.dataclass(frozen=True)
class HostState:
    """The state that a host reports.

    boot: its agent, another one after each restart of the agent. attempt: its newest, from 1.
    code: how its process ended in that attempt. line: what it last reported of its progress.
    leaving: the machine is about to be preempted or maintained, as known without a process.
    """

    boot: str
    stage: str
    attempt: int = 0
    code: int | None = None
    line: str = ""
    leaving: bool = False


# By index: each host that has reported, and how many seconds ago.
Hosts = Mapping[int, tuple[HostState, float]]


@dataclasses.dataclass(frozen=True)
class Retired:
    """The reason why a queued resource was released.

    code: the restart budget it counts against: STOPPED preemptions, LOST failures, None neither.
    refused: there was no capacity for it.
    """

    code: int | None
    why: str
    refused: bool = False


@dataclasses.dataclass(frozen=True)
class History:
    """A queued resource of the job, existing or not. reported: it has had machines."""

    number: int
    plan: Plan = Plan()
    retired: Retired | None = None
    reported: bool = False

    def codes(self) -> list[int]:
        """Returns what happened on it, each event once: exit codes of attempts and of its end.

        A preemption that was announced, or a host that the others lost, ends an attempt and then
        the queued resource: one event with one code.
        """
        codes = [attempt.code for attempt in self.plan.attempts if attempt.code is not None]
        code = self.retired.code if self.retired else None
        return codes if code is None or code in self.last_code() else [*codes, code]

    def last_code(self) -> list[int]:
        """Returns the exit code of the last attempt, if there was one and it has ended."""
        return [attempt.code for attempt in self.plan.attempts[-1:] if attempt.code is not None]


def used(histories: Iterable[History]) -> Restarts:
    """Returns the preemptions and failures so far."""
    codes = [code for history in histories for code in history.codes()]
    return Restarts(preemptions=codes.count(STOPPED), failures=codes.count(LOST))
