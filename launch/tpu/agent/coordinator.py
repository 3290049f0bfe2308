"""Host 0 decides when an attempt of the job starts, when it has ended, and whether another follows.

The rules are those of `launch local run`: all processes start together; after one ends with an
error the others have time to notice or to save, then they are killed; exit codes and budgets decide
about the next attempt.
"""

import dataclasses
from collections.abc import Iterable

from bert_jax.exit_codes import LOST, STOPPED, describe, verdict
from bert_jax.launch.restarts import Limits, Restarts
from bert_jax.launch.tpu.history import INSTALLING, READY, RUNNING, Attempt, End, Hosts, Plan

ARRIVAL = 1800.0  # seconds for all hosts to boot and install
SILENT = 90.0  # seconds without a report after which a host counts as gone; it reports every 15
_KILLED = -9  # exit code of a process that went with its host


@dataclasses.dataclass(frozen=True)
class Events:
    """Events other than the reports of the hosts.

    stopping: the user asked the job to stop. leaving: the machine of this host or of another is
    about to go, so no attempt starts.
    """

    stopping: bool = False
    leaving: bool = False


class Coordinator:
    """The plan of a queued resource, advanced with each look at its hosts; does no input or output.

    Times are in seconds of any clock that does not jump.
    """

    def __init__(
        self, hosts: int, plan: Plan, restarts: Restarts, limits: Limits, now: float
    ) -> None:
        """plan: so far, by an agent before this one. restarts: used so far, with the plan's."""
        self.plan = plan
        self._hosts, self._restarts, self._limits = hosts, restarts, limits
        self._waiting_since = now  # for all hosts to be ready
        self._start_at = now  # the next attempt, at the earliest
        self._ends: dict[int, int] = {}  # exit codes of the running attempt, in order
        self._kill_at: float | None = None  # when its remaining processes are killed
        self._give_up_at: float | None = None  # when those that do not report that are given up

    def advance(self, hosts: Hosts, events: Events, now: float) -> None:
        """Updates the plan after a look at all hosts."""
        if self.plan.final:
            return
        leaving = events.leaving or any(state.leaving for state, _ in hosts.values())
        events = dataclasses.replace(events, leaving=leaving)
        if self.plan.is_running:
            self._watch(hosts, events, now)
        elif events.stopping:
            self._finish(STOPPED, "stopped on request")
        elif leaving:
            self._waiting_since = now
        elif now >= self._start_at:
            self._start(hosts, now)

    def _start(self, hosts: Hosts, now: float) -> None:
        for index, (state, _) in hosts.items():
            if state.stage == INSTALLING and state.code is not None:
                self._finish(state.code, f"host-{index}: {state.line}")
                return
        missing = [index for index in range(self._hosts) if not _is_ready(hosts, index)]
        if not missing:
            boots = tuple(hosts[index][0].boot for index in range(self._hosts))
            attempts = (*self.plan.attempts, Attempt(boots))
            self.plan = dataclasses.replace(self.plan, attempts=attempts, kill=0)
            self._ends, self._kill_at, self._give_up_at = {}, None, None
        elif now > self._waiting_since + ARRIVAL:
            self.plan = dataclasses.replace(self.plan, attempts=(*self.plan.attempts, Attempt()))
            late = f"{_names(missing)} did not report within {ARRIVAL / 60:.0f} minutes"
            self._end(LOST, late, Events(), now)

    def _watch(self, hosts: Hosts, events: Events, now: float) -> None:
        number = len(self.plan.attempts)
        for index, boot in enumerate(self.plan.attempts[-1].boots):
            code = self._code(hosts, index, boot, number, now)
            if code is not None and index not in self._ends:
                self._ends[index] = code
                if code != 0 and self._kill_at is None:
                    needed = self._limits.grace if code == STOPPED else self._limits.noticing
                    self._kill_at = now + needed + self._limits.margin
        if events.stopping and self._kill_at is None:
            self._kill_at = now + self._limits.grace + self._limits.margin
        if len(self._ends) == len(self.plan.attempts[-1].boots):
            ends = [(f"host-{index}", code) for index, code in self._ends.items()]
            self._end(verdict(self._ends.values()), describe(ends), events, now)
        elif self._kill_at is not None and now >= self._kill_at and not self.plan.kill:
            self.plan = dataclasses.replace(self.plan, kill=number)
            self._give_up_at = now + self._limits.margin

    def _code(self, hosts: Hosts, index: int, boot: str, number: int, now: float) -> int | None:
        """Returns how a host's process ended in this attempt; None while it runs."""
        if index not in hosts:
            return None
        state, age = hosts[index]
        if state.boot != boot:  # it was restarted, and its process ended with it
            return _KILLED
        if state.attempt == number and state.code is not None:
            return state.code
        given_up = self._give_up_at is not None and now >= self._give_up_at
        # The report of another has just been read: it is not the bucket that is away.
        silent = bool(self._ends) and age > SILENT
        return _KILLED if given_up or silent else None

    def _end(self, code: int, what: str, events: Events, now: float) -> None:
        """Ends the running attempt and decides about another."""
        if code == LOST and (events.stopping or events.leaving):
            code = STOPPED  # a requested stop is not a failure, however the processes ended
        if code == 0 or events.stopping:
            self.plan = self.plan.end_attempt(code, what)
            self._finish(code, what)
            return
        decision = self._restarts.after(code, self._limits)
        self.plan = self.plan.end_attempt(code, f"{what}; {decision.reason}")
        if not decision.again:
            self._finish(code, f"{what}; {decision.reason}")
        self._waiting_since, self._start_at = now, now + decision.pause

    def _finish(self, code: int, why: str) -> None:
        self.plan = dataclasses.replace(self.plan, final=End(code, why))


def _is_ready(hosts: Hosts, index: int) -> bool:
    """Returns whether a host can start an attempt."""
    if index not in hosts:
        return False
    state, age = hosts[index]
    is_idle = state.stage == READY or (state.stage == RUNNING and state.code is not None)
    return is_idle and age <= SILENT


def _names(indices: Iterable[int]) -> str:
    return ", ".join(f"host-{index}" for index in indices)
