"""Watches a job on queued resources: looks, does what `reconcile` says, shows where the job is."""

import contextlib
import math
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from bert_jax.data_pipeline.errors import UserError
from bert_jax.launch import reconcile
from bert_jax.launch.bucket import BucketError
from bert_jax.launch.exit_codes import STOPPED
from bert_jax.launch.history import GONE, RUNNING, End, Retired, used
from bert_jax.launch.queued_resources import ApiError, resource_name
from bert_jax.launch.reconcile import Resource, Seen, is_transient
from bert_jax.launch.records import Look, Records

# Seconds without a report after which a host's machines are given up; repairing one takes minutes.
SILENT = 900.0
# Seconds after the machines are made in which every host must report. One whose account may not
# write to the bucket never does.
ABSENT = 2400.0
# Seconds after which a launcher that has not looked again is taken for gone: a look of gcloud takes
# some, on a busy machine many.
_LEASE = 60.0
_LOOKS = 6  # after which a request that found no capacity is made again, at first
_DELETED = End(STOPPED, "the job was deleted")
_MAKING = {
    "ACCEPTED": "waiting for capacity", "WAITING_FOR_RESOURCES": "waiting for capacity",
    "CREATING": "machines are being made", "PROVISIONING": "machines are being made",
    "SUSPENDING": "being preempted", "DELETING": "the machines are being given back",
}  # fmt: skip


class OtherLauncherError(UserError):
    """Another launcher watches the job."""


class Api(Protocol):
    """What a watcher needs of the cloud; see `queued_resources`."""

    def list(self) -> list[Resource]: ...

    def create(self, number: int) -> None: ...

    def delete(self, number: int) -> None: ...


class Watcher:
    """A launcher that watches one submission of a job."""

    def __init__(
        self,
        name: str,
        records: Records,
        api: Api,
        say: Callable[[str], None],
        *,
        poll: float,
        sleep: Callable[[float], object] = time.sleep,
    ):
        """name: of the job. say: prints a line. poll: seconds between two looks."""
        self._name, self._records, self._api, self._say = name, records, api, say
        self._poll, self._sleep, self._lease = poll, sleep, _LEASE + poll
        self._me = {"id": uuid.uuid4().hex, "host": socket.gethostname(), "pid": os.getpid()}
        self._shown = ""  # the last line about where the job is
        self._attempts: dict[int, int] = {}  # attempts whose end was shown, by queued resource

    def claim(self) -> None:
        """Makes this the launcher that watches.

        Raises:
            OtherLauncherError: another one does.
        """
        look = self._records.look()
        if (other := self._other(look)) and look.watching:
            wait = self._lease - look.watching[1]
            self._say(f"{other} looked {look.watching[1]:.0f} s ago; waiting for {wait:.0f} s")
            self._sleep(wait)
            if self._other(self._records.look()):
                line = f"--name={self._name}: {other} watches this job; end that first"
                raise OtherLauncherError(line)
        self._records.watch(self._me)

    def release(self) -> None:
        """Makes room for another launcher at once."""
        with contextlib.suppress(BucketError):  # which then waits until this one is taken for gone
            self._records.release(self._me)

    def tick(self) -> End | None:
        """Looks once and does at most one thing; returns how the job ended once it has, and
        nothing of it exists.

        Raises:
            UserError: the API refuses to answer.
            OtherLauncherError: another launcher has taken over.
        """
        try:
            return self._look()
        except ApiError as error:
            if not is_transient(error.code, str(error)):
                raise
            self._show(f"no answer ({error})")
        except BucketError as error:
            self._show(f"no answer ({error})")
        return None

    def _look(self) -> End | None:
        resources = self._api.list()  # first: what has ended is recorded before it is deleted
        look = self._records.look()
        if look.submission is None:
            return _DELETED
        if other := self._other(look):
            raise OtherLauncherError(f"{other} watches {self._name} now; the job is not affected")
        if look.next_first:  # the job was submitted again; those are for its launcher
            resources = [one for one in resources if one.number < look.next_first]
        self._records.watch(self._me)
        first = look.submission.first
        # Those of an earlier submission are deleted first, and are not part of this history.
        mine = [resource for resource in resources if resource.number >= first]
        if mine and mine[-1].state == "ACTIVE" and mine[-1].number not in look.active:
            self._records.note_active(mine[-1].number)
        self._show_attempts(look)
        seen = Seen(
            resources=resources,
            histories=look.histories,
            first=first,
            end=look.end,
            stopping=look.stopping,
            silent=_silent(resources, look),
            idle=look.idle,
            pause=_LOOKS * self._poll,
        )
        return self._act(reconcile.reconcile(seen, look.submission.limits), resources, look)

    def run(self) -> End:
        """Watches until the job has ended and nothing of it exists; returns how it ended."""
        while (end := self.tick()) is None:
            self._sleep(self._poll)
        return end

    def settle(self, seconds: float) -> End | None:
        """Does the same, but leaves the work to another launcher that watches; returns None if it
        takes longer than `seconds`."""
        for _ in range(max(math.ceil(seconds / self._poll), 1)):
            try:
                end = self.tick()
            except OtherLauncherError:
                self._show("waiting for the launcher that watches")
                end = None
            if end:
                return end
            self._sleep(self._poll)
        return None

    def _act(self, action: reconcile.Action, resources: list[Resource], look: Look) -> End | None:
        match action:
            case reconcile.Create(number):
                self._create(number)
            case reconcile.Delete(number):
                self._api.delete(number)
            case reconcile.Retire(number, retired, line):
                self._records.retire(number, retired)
                self._show(f"{resource_name(self._name, number)}: {line}")
            case reconcile.Finish(end):
                self._records.set_end(end)
            case reconcile.Leave(end):
                return end
            case reconcile.Wait(what):
                self._show(where(self._name, resources, look) or f"waiting for {what}")
        return None

    def _create(self, number: int) -> None:
        try:
            self._api.create(number)
        except ApiError as error:
            if not is_transient(error.code, str(error)):
                self._records.set_end(reconcile.refusal(str(error)))
            elif error.name == "RESOURCE_EXHAUSTED":
                self._records.retire(number, Retired(None, str(error), refused=True))
            self._show(str(error))

    def _other(self, look: Look) -> str:
        """Returns the name of another launcher that watches, "" without one."""
        if look.watching is None:
            return ""
        about, age = look.watching
        if about["id"] == self._me["id"] or age > self._lease or _has_ended(about, self._me):
            return ""
        return f"another launcher (process {about['pid']} of {about['host']})"

    def _show_attempts(self, look: Look) -> None:
        """Shows how attempts ended, each once."""
        for history in look.histories:
            shown = self._attempts.get(history.number, 0)
            ended = [attempt for attempt in history.plan.attempts if attempt.code is not None]
            for attempt in ended[shown:]:
                self._say(f"{resource_name(self._name, history.number)}: {attempt.why}")
            self._attempts[history.number] = len(ended)

    def _show(self, line: str) -> None:
        if line != self._shown:
            self._say(line)
        self._shown = line


def where(name: str, resources: list[Resource], look: Look) -> str:
    """Returns where the job is in one line, "" if no queued resource exists."""
    if not resources:
        return ""
    resource = resources[-1]
    start = f"{resource_name(name, resource.number)}: "
    if resource.state != "ACTIVE":
        return start + _MAKING.get(resource.state, resource.state)
    hosts = look.hosts.get(resource.number, {})
    total = look.submission.hosts if look.submission else len(hosts)
    if len(hosts) < total:
        return f"{start}booting, {len(hosts)} of {total} hosts there"
    plan = next((h.plan for h in look.histories if h.number == resource.number), None)
    at_work = sum(state.stage in (RUNNING, GONE) for state, _ in hosts.values())
    if plan is None or not plan.attempts:
        ready = sum(state.stage != "installing" for state, _ in hosts.values())
        return f"{start}installing, {ready} of {total} hosts ready"
    line = hosts[0][0].line if 0 in hosts else ""
    return f"{start}attempt {len(plan.attempts)} on {at_work} of {total} hosts  {line}".rstrip()


def report(name: str, resources: list[Resource], look: Look) -> str:
    """Returns where the job, its restarts and its hosts are, in several lines."""
    restarts = used(look.histories)
    lines = [where(name, resources, look) or "no machine exists"]
    lines.append(f"{restarts.preemptions} preemptions, {restarts.failures} failures so far")
    if look.end:
        lines.append(f"ended with {look.end.code} ({look.end.why})")
    elif look.stopping:
        lines.append("asked to stop")
    number = resources[-1].number if resources else 0
    for index, (state, age) in sorted(look.hosts.get(number, {}).items()):
        at = f"attempt {state.attempt}, " if state.attempt else ""
        lines.append(f"host-{index}: {state.stage}, {at}{age:.0f} s ago  {state.line}".rstrip())
    return "\n".join(lines)


def _silent(resources: list[Resource], look: Look) -> str:
    """Returns which hosts of the newest queued resource have not reported for too long."""
    if not resources or look.submission is None:
        return ""
    number = resources[-1].number
    hosts = look.hosts.get(number, {})
    silent = [
        i for i, (state, age) in sorted(hosts.items()) if age > SILENT and state.stage != GONE
    ]
    if silent:
        return f"{_names(silent)}: no report for {SILENT / 60:.0f} minutes"
    absent = [i for i in range(look.submission.hosts) if i not in hosts]
    if absent and look.active.get(number, 0.0) > ABSENT:
        return f"{_names(absent)}: no report in the first {ABSENT / 60:.0f} minutes"
    return ""


def _names(hosts: Iterable[int]) -> str:
    return ", ".join(f"host-{index}" for index in hosts)


def _has_ended(about: Mapping[str, Any], me: Mapping[str, Any]) -> bool:
    """Whether a launcher was a process of this machine that is gone."""
    if about["host"] != me["host"]:
        return False
    try:
        os.kill(about["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return about["pid"] == me["pid"]
