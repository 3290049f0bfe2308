"""Decides what a launcher does about a job on queued resources: state in, at most one action out.

A queued resource belongs to a job by its number; at most one exists at a time. Each is created,
waits for capacity, boots, works, and is given up or ends with the job. All state is with the API
and in the records of the job, so it does not matter how often a launcher is killed and started.
"""

import dataclasses
import re
from collections.abc import Sequence

from bert_jax.exit_codes import LOST, STOPPED
from bert_jax.launch.restarts import Limits
from bert_jax.launch.tpu.history import End, History, Retired, used

FAILED = 1  # exit code of a job that the API refuses
_MAX_DOUBLINGS = 4  # of the pause after the API had no capacity
# google.rpc.Code: of requests that may succeed later.
_TRANSIENT = {
    "DEADLINE_EXCEEDED": 4, "RESOURCE_EXHAUSTED": 8, "ABORTED": 10, "INTERNAL": 13,
    "UNAVAILABLE": 14,
}  # fmt: skip
# Of the same code as a lack of capacity: only somebody else can change that. Not the limits of
# requests per minute, which are called quotas, too.
_QUOTA = re.compile(r"quota(?!.*per (minute|second))", re.IGNORECASE)
_RESERVED = re.compile(r"reservation|reserved", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Resource:
    """A queued resource as the API lists it.

    code, error: of the state FAILED. submission: id of the one that it was requested for.
    """

    number: int
    state: str
    code: int = 0
    error: str = ""
    submission: str = ""


@dataclasses.dataclass(frozen=True)
class Observed:
    """The queued resources of a job and its records at one moment.

    resources: all that exist under the job's name. first: number of the first one of this
    submission, whose id is `submission`. silent: which hosts of the newest have not reported for
    too long; empty if none. idle: seconds since one was last given up. pause: seconds between two
    requests when there is no capacity; doubles each time.
    """

    resources: Sequence[Resource]
    histories: Sequence[History]
    first: int = 1
    submission: str = ""
    end: End | None = None
    stopping: bool = False
    silent: str = ""
    idle: float = float("inf")
    pause: float = 60.0


@dataclasses.dataclass(frozen=True)
class Create:
    number: int


@dataclasses.dataclass(frozen=True)
class Delete:
    number: int


@dataclasses.dataclass(frozen=True)
class Retire:
    """Records that a queued resource is given up; it is deleted next. line: for the user."""

    number: int
    retired: Retired
    line: str


@dataclasses.dataclass(frozen=True)
class Finish:
    """Records how the job ended; what exists is deleted next."""

    end: End


@dataclasses.dataclass(frozen=True)
class Leave:
    """The job has ended and nothing of it exists."""

    end: End


@dataclasses.dataclass(frozen=True)
class Wait:
    """Nothing to do yet. what: the job waits for."""

    what: str


Action = Create | Delete | Retire | Finish | Leave | Wait


def reconcile(observed: Observed, limits: Limits) -> Action:
    """Returns the next action."""
    for resource in observed.resources:
        if is_over(resource, observed):
            if resource.state == "DELETING":
                return Wait("the TPU to be released")
            return Delete(resource.number)
    if observed.end:
        return Leave(observed.end)
    if observed.resources:
        return _present(observed.resources[-1], observed, limits)
    return _absent(observed, limits)


def is_over(resource: Resource, observed: Observed) -> bool:
    """Returns whether the job no longer wants a queued resource. It never wants it again, so any
    launcher may delete it at any time, however late."""
    given_up = any(h.retired for h in observed.histories if h.number == resource.number)
    is_foreign = bool(resource.submission) and resource.submission != observed.submission
    return bool(observed.end) or given_up or resource.number < observed.first or is_foreign


def is_transient(code: int, message: str) -> bool:
    """Returns whether the API may take the same request later: there is no capacity now, or it
    fails."""
    lasts = _QUOTA.search(message) or _RESERVED.search(message)
    return code in _TRANSIENT.values() and not lasts


def refusal(message: str) -> End:
    """Returns the end of a job whose request the API refuses for good."""
    ask = "; ask for more of it: https://console.cloud.google.com/iam-admin/quotas"
    return End(FAILED, f"{message}{ask}" if _QUOTA.search(message) else message)


def transient_code(name: str) -> int:
    """Returns the number of a transient code's name, 0 for other names."""
    return _TRANSIENT.get(name, 0)


def _present(resource: Resource, observed: Observed, limits: Limits) -> Action:
    history = _history_of(resource.number, observed)
    if resource.state == "SUSPENDED":
        return _lost(history, STOPPED, "preempted", observed, limits)
    if resource.state == "FAILED":
        if observed.stopping:
            return Finish(End(STOPPED, "stopped before it had machines"))
        if not is_transient(resource.code, resource.error):
            return Finish(refusal(resource.error))
        return Retire(resource.number, Retired(None, resource.error, True), resource.error)
    if resource.state == "ACTIVE":
        if observed.silent:
            return _lost(history, LOST, observed.silent, observed, limits)
        return Wait("the job to stop" if observed.stopping else "the job")
    if observed.stopping and resource.state not in ("SUSPENDING", "DELETING"):
        return Finish(End(STOPPED, "stopped before it had machines"))
    return Wait(resource.state)


def _absent(observed: Observed, limits: Limits) -> Action:
    last = observed.histories[-1] if observed.histories else History(observed.first)
    if last.reported and not last.retired:
        why = "its machines are gone, and neither host 0 nor a launcher deleted them"
        return _lost(last, LOST, why, observed, limits)
    if observed.stopping:
        return Finish(End(STOPPED, "stopped before it had machines"))
    refused = 0
    for history in reversed(observed.histories):
        if not (history.retired and history.retired.refused):
            break
        refused += 1
    pause = observed.pause * 2 ** min(refused - 1, _MAX_DOUBLINGS) if refused else 0.0
    if observed.idle < pause:
        return Wait(f"capacity; the next request is made {pause:g} s after the last")
    return Create(last.number + 1 if last.retired else last.number)


def _lost(history: History, code: int, why: str, observed: Observed, limits: Limits) -> Action:
    """Returns the action after the machines of a queued resource were lost.

    code: STOPPED for a preemption, LOST for a failure.
    """
    if history.plan.final:  # host 0 had decided, but could not finish
        return Finish(history.plan.final)
    if observed.stopping:
        return Finish(End(STOPPED, f"{why}, while it was to stop"))
    if code in history.last_code():  # counted when the attempt ended
        return Retire(history.number, Retired(None, why), f"{why}; starting again")
    decision = used(observed.histories).after(code, limits)
    if not decision.again:
        return Finish(End(code, f"{why}; {decision.reason}"))
    return Retire(history.number, Retired(code, why), f"{why}; {decision.reason}")


def _history_of(number: int, observed: Observed) -> History:
    return next((h for h in observed.histories if h.number == number), History(number))
