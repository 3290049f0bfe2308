"""Watches a job on queued resources: looks, does what `reconcile` says, shows where the job is."""

# Over 300 lines: one class, which alone creates and deletes the machines of a job.

import contextlib
import math
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from bert_jax.errors import UserError
from bert_jax.exit_codes import STOPPED
from bert_jax.launch.tpu import reconcile
from bert_jax.launch.tpu.bucket import BucketError
from bert_jax.launch.tpu.history import GONE, End, Retired
from bert_jax.launch.tpu.job_records import Records, Snapshot
from bert_jax.launch.tpu.queued_resources import ApiError, resource_name
from bert_jax.launch.tpu.reconcile import Observed, Resource, is_transient
from bert_jax.launch.tpu.standing import names_of, where

# Seconds without a report after which a host's machines are given up; repairing one takes minutes.
SILENT = 900.0
# Seconds after the machines are made in which every host must report. One whose account may not
# write to the bucket never does.
ABSENT = 2400.0
# Seconds after which a launcher that has not looked again is taken for gone: a look of gcloud takes
# some, on a busy machine many.
_LEASE = 60.0
_LISTS = 3  # of one look, if one of them is too old
_LOOKS = 6  # after which a request that found no capacity is made again, at first
_DELETED = End(STOPPED, "the job was deleted")


class OtherLauncherError(UserError):
    """Another launcher watches the job."""


class Api(Protocol):
    """The calls of the cloud that a watcher makes; see `queued_resources`."""

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
        submission: str | None = None,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.time,
    ):
        """name: of the job. say: prints a line. poll: seconds between two looks. submission: id of
        the one to watch, that of the first look by default. clock: one that also counts while this
        machine sleeps."""
        self._name, self._records, self._api, self._say = name, records, api, say
        self._poll, self._sleep, self._lease = poll, sleep, _LEASE + poll
        self._submission, self._clock = submission, clock
        self._me = {"id": uuid.uuid4().hex, "host": socket.gethostname(), "pid": os.getpid()}
        self._shown = ""  # the last line about where the job is
        self._attempts: dict[int, int] = {}  # attempts whose end was shown, by queued resource
        self._reported: set[int] = set()  # queued resources that had machines at an earlier look

    def claim(self) -> None:
        """Makes this the launcher that watches.

        Raises:
            OtherLauncherError: another one does.
        """
        snapshot = self._records.snapshot()
        if (other := self._other(snapshot)) and snapshot.watching:
            wait = self._lease - snapshot.watching[1]
            self._say(f"{other} looked {snapshot.watching[1]:.0f} s ago; waiting for {wait:.0f} s")
            self._sleep(wait)
            if self._other(self._records.snapshot()):
                line = f"--name={self._name}: {other} watches this job; end that first"
                raise OtherLauncherError(line)
        self._reported = _reported(snapshot)
        if snapshot.submission:
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
        for _ in range(_LISTS):
            began = self._clock()
            resources = self._api.list()  # first: what has ended is recorded before it is deleted
            snapshot = self._records.snapshot()
            if not 0.0 <= self._clock() - began <= self._lease:
                continue  # this machine has slept
            if snapshot.submission and self._submission is None:
                self._submission = snapshot.submission.id
            if snapshot.submission is None or snapshot.submission.id != self._submission:
                return self._leave(resources, snapshot)
            observed = self._observe(resources, snapshot)
            if other := self._other(snapshot):
                # It may have looked for the last time before they were made.
                self._delete(
                    [one for one in observed.resources if reconcile.is_over(one, observed)]
                )
                line = f"{other} watches {self._name} now; the job is not affected"
                raise OtherLauncherError(line)
            is_coherent = self._is_coherent(observed, snapshot)
            # Those of an earlier submission are deleted first, and are not part of this history.
            mine = [one for one in observed.resources if not reconcile.is_over(one, observed)]
            if mine and mine[-1].state == "ACTIVE" and mine[-1].number not in snapshot.active:
                self._records.note_active(mine[-1].number)
            self._show_attempts(snapshot)
            self._records.watch(self._me)
            if is_coherent and 0.0 <= self._clock() - began <= self._lease:
                return self._act(
                    reconcile.reconcile(observed, snapshot.submission.limits), observed, snapshot
                )
        return None

    def _observe(self, resources: Sequence[Resource], snapshot: Snapshot) -> Observed:
        if snapshot.next_first:  # the job was submitted again; those are for its launcher
            resources = [
                one
                for one in resources
                if one.number < snapshot.next_first
                or (one.submission and one.submission == self._submission)
            ]
        return Observed(
            resources=resources,
            histories=snapshot.histories,
            first=snapshot.submission.first if snapshot.submission else 1,
            submission=self._submission or "",
            end=snapshot.end,
            stopping=snapshot.stopping,
            silent=_silent(resources, snapshot),
            idle=snapshot.idle,
            pause=_LOOKS * self._poll,
        )

    def _is_coherent(self, observed: Observed, snapshot: Snapshot) -> bool:
        """Returns whether nothing can have been made by another launcher since the list.

        This machine may have slept after it: then another one has claimed the job, or could have;
        or machines are there that were not when it listed, and are not gone.
        """
        is_mine = snapshot.watching is not None and snapshot.watching[0]["id"] == self._me["id"]
        is_recent = snapshot.watching is not None and snapshot.watching[1] <= self._lease
        appeared = _reported(snapshot) - self._reported - {one.number for one in observed.resources}
        self._reported = _reported(snapshot)
        return is_mine and is_recent and not appeared

    def _delete(self, resources: Sequence[Resource]) -> None:
        """Deletes queued resources that were listed, unless one of that name is of another
        submission by now, or is being deleted: once it is gone, the name is free."""
        left = _staying(resources)
        for number, _ in sorted(left & _staying(self._api.list() if left else ())):
            self._api.delete(number)

    def _leave(self, resources: Sequence[Resource], snapshot: Snapshot) -> End | None:
        """Gives back what was made for a job that was deleted; returns its end once that is gone.

        A request of this launcher may have arrived after `delete` has seen that nothing exists.
        """
        if snapshot.submission:  # the job was run again: only what this launcher has made
            resources = [one for one in resources if one.submission == self._submission != ""]
        self._delete(resources)
        if not resources:
            return _DELETED
        self._show("the job was deleted; waiting for the TPU to be released")
        return None

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

    def _act(self, action: reconcile.Action, observed: Observed, snapshot: Snapshot) -> End | None:
        match action:
            case reconcile.Create(number):
                self._create(number)
            case reconcile.Delete(number):
                self._delete([one for one in observed.resources if one.number == number])
            case reconcile.Retire(number, retired, line):
                self._records.retire(number, retired)
                self._show(f"{resource_name(self._name, number)}: {line}")
            case reconcile.Finish(end):
                self._records.set_end(end)
            case reconcile.Leave(end):
                return end
            case reconcile.Wait(what):
                self._show(where(self._name, observed.resources, snapshot) or f"waiting for {what}")
        return None

    def _create(self, number: int) -> None:
        try:
            self._api.create(number)
        except ApiError as error:
            self._show(str(error))
            passes = is_transient(error.code, str(error))
            if passes and error.name != "RESOURCE_EXHAUSTED":
                return
            # The answer may be late, and the request of another launcher have been taken.
            if self._other(self._records.snapshot()):
                return
            if any(one.number == number for one in self._api.list()):
                return
            if passes:
                self._records.retire(number, Retired(None, str(error), refused=True))
            else:
                self._records.set_end(reconcile.refusal(str(error)))

    def _other(self, snapshot: Snapshot) -> str:
        """Returns the name of another launcher that watches, "" without one."""
        if snapshot.watching is None:
            return ""
        about, age = snapshot.watching
        if about["id"] == self._me["id"] or age > self._lease or _has_ended(about, self._me):
            return ""
        return f"another launcher (process {about['pid']} of {about['host']})"

    def _show_attempts(self, snapshot: Snapshot) -> None:
        """Shows how attempts ended, each once."""
        for history in snapshot.histories:
            shown = self._attempts.get(history.number, 0)
            ended = [attempt for attempt in history.plan.attempts if attempt.code is not None]
            for attempt in ended[shown:]:
                self._say(f"{resource_name(self._name, history.number)}: {attempt.why}")
            self._attempts[history.number] = len(ended)

    def _show(self, line: str) -> None:
        if line != self._shown:
            self._say(line)
        self._shown = line


def _staying(resources: Iterable[Resource]) -> set[tuple[int, str]]:
    """Returns number and submission of the queued resources that are not being deleted."""
    return {(one.number, one.submission) for one in resources if one.state != "DELETING"}


def _reported(snapshot: Snapshot) -> set[int]:
    """Returns the queued resources that have had machines."""
    return {history.number for history in snapshot.histories if history.reported}


def _silent(resources: Sequence[Resource], snapshot: Snapshot) -> str:
    """Returns which hosts of the newest queued resource have not reported for too long."""
    if not resources or snapshot.submission is None:
        return ""
    number = resources[-1].number
    hosts = snapshot.hosts.get(number, {})
    silent = [
        i for i, (state, age) in sorted(hosts.items()) if age > SILENT and state.stage != GONE
    ]
    if silent:
        return f"{names_of(silent)}: no report for {SILENT / 60:.0f} minutes"
    absent = [i for i in range(snapshot.submission.hosts) if i not in hosts]
    if absent and snapshot.active.get(number, 0.0) > ABSENT:
        return f"{names_of(absent)}: no report in the first {ABSENT / 60:.0f} minutes"
    return ""


def _has_ended(about: Mapping[str, Any], me: Mapping[str, Any]) -> bool:
    """Returns whether a launcher was a process of this machine that is gone."""
    if about["host"] != me["host"]:
        return False
    try:
        os.kill(about["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return about["pid"] == me["pid"]
