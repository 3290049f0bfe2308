"""Launchers of one job in any interleaving: each request of each is a step of its own.

Between two steps other launchers move, machines are made, lost and preempted, hosts report, the
user stops, deletes and runs the job, time passes, a request or its answer is lost, a launcher dies.
"""

import functools
from collections.abc import Callable
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from launch_jobs import job
from memory_bucket import MemoryBucket
from stepped import KilledError, Program, current
from stepped_cloud import NO_CAPACITY, STARTING, Cloud, Machines, answered, arrives

from bert_jax.errors import UserError
from bert_jax.exit_codes import LOST, STOPPED
from bert_jax.launch.restarts import Limits
from bert_jax.launch.tpu import backend as tpu
from bert_jax.launch.tpu import submit, teardown
from bert_jax.launch.tpu.agent.coordinator import Coordinator, Events
from bert_jax.launch.tpu.history import INSTALLING, READY, RUNNING, History, HostState, used
from bert_jax.launch.tpu.job_records import Records
from bert_jax.launch.tpu.watch import SILENT, Watcher

LIMITS = Limits(max_preemptions=2, max_failures=1, grace=0.0, noticing=0.0, margin=0.0)
LATE = 70.0  # seconds: a claim that is older counts no more
RARELY = st.sampled_from([False] * 7 + [True])
WHO = st.integers(0, 1)


class Launchers(RuleBasedStateMachine):
    """A job of one host, two machines with a launcher each, and one from which the user stops or
    deletes it."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket = MemoryBucket()
        self.bucket.before = lambda what: arrives(f"{what} of the bucket")
        self.bucket.after = lambda what: answered()
        self.machines: dict[int, Machines] = {}
        self.programs: list[Program | None] = [None, None, None]
        self.ended: list[Program] = []
        self.is_full = False  # no capacity
        self.noted: set[str] = set()  # records that were there at the last step
        self.was_killed = False  # some launcher, which gives nothing back any more
        self.happened: dict[tuple[int, str], dict[int, int]] = {}  # by submission
        self.given_up: dict[tuple[int, str], dict[int, int | None]] = {}
        patches = {
            "_bucket": lambda job: self.bucket,
            "Watcher": functools.partial(Watcher, sleep=self.sleep, clock=lambda: self.bucket.now),
        }
        self.patches = [mock.patch.object(tpu, name, new) for name, new in patches.items()]
        self.patches += [
            mock.patch.object(tpu.Tpu, "_api", lambda _, job, of=None: Cloud(self, of)),
            mock.patch.object(tpu.log_pieces, "print_last"),
            *(mock.patch.object(module, "say", str) for module in (tpu, submit, teardown)),
            # Each launcher is on another machine: none sees whether the process of another lives.
            mock.patch("bert_jax.launch.tpu.watch._has_ended", return_value=False),
        ]
        for patch in self.patches:
            patch.start()

    @initialize(may_delete=st.booleans(), works=st.booleans())
    def begins(self, may_delete: bool, works: bool) -> None:
        """may_delete: the account of the machines may give them back. works: the job does."""
        self.may_delete = may_delete
        self.user_runs_it(0, "v4-8")
        if works:
            self.all_goes_well(0)

    # What must hold.

    def records(self, of: tuple[int, str]) -> Records | None:
        """The records of a submission, None once it was deleted."""
        records = Records(self.bucket, of[0])
        found = records.submission()
        return records if found and found.id == of[1] else None

    def history(self, machines: Machines) -> History | None:
        records = self.records(machines.of)
        found = records.snapshot().histories if records else ()
        return next((one for one in found if one.number == machines.number), None)

    def check_create(self, number: int, of: tuple[int, str]) -> None:
        """What is wanted is made within the budgets; what is not is not counted: it goes again."""
        records = self.records(of)
        snapshot = records.snapshot() if records else None
        if snapshot is None or snapshot.end:
            return
        if any(h.number == number and h.retired for h in snapshot.histories):
            return
        counted, happened = used(snapshot.histories), self.happened[of]
        assert {STOPPED: counted.preemptions, LOST: counted.failures} == happened
        assert happened[STOPPED] <= LIMITS.max_preemptions
        assert happened[LOST] <= LIMITS.max_failures

    def check_delete(self, machines: Machines) -> None:
        """What works or is being made is deleted after the job's end, or if it was given up."""
        records = self.records(machines.of)
        if machines.state not in STARTING or records is None or records.is_marked("end"):
            return
        assert records.is_retired(machines.number), "a slice that is wanted is deleted"

    def note_records(self) -> None:
        """Notes new submissions, and what a launcher has just given up."""
        names = {
            e.name for e in self.bucket.list() if e.name.endswith(("job.json", "retired.json"))
        }
        new, self.noted = names - self.noted, names
        for records in [Records(self.bucket, int(name[:4])) for name in sorted(new)]:
            if found := records.submission():
                of = (records.run, found.id)
                self.happened.setdefault(of, {STOPPED: 0, LOST: 0})
                known = self.given_up.setdefault(of, {})
                for history in records.snapshot().histories:
                    if history.retired and history.number not in known:
                        known[history.number] = history.retired.code
                        self.note_given_up(of, history)

    def note_given_up(self, of: tuple[int, str], history: History) -> None:
        machines = self.machines.get(history.number)
        if machines is None or machines.of != of:
            assert history.retired.code != LOST, "machines that nobody has made were lost"
            return
        if history.retired.refused:
            assert machines.state in ("FAILED", "DELETING"), "a slice that was made is given up"
        elif history.retired.code == LOST or machines.state == "ACTIVE":
            assert self.silent_since(machines) >= self.bucket.now - LATE
        if history.retired.code == LOST:
            assert machines.last_code != LOST, "the attempt has counted"
            self.happened[of][LOST] += 1
            if machines.preempted:  # while a launcher was giving it up: one event
                self.happened[of][STOPPED] -= 1

    def silent_since(self, machines: Machines) -> float:
        """When a host was last seen not to have reported for too long; now, if it is."""
        records = self.records(machines.of)
        hosts = records.hosts(machines.number) if records else {}
        is_silent = any(age > SILENT for _, age in hosts.values()) or not hosts
        return self.bucket.now if is_silent else machines.silent_at

    @invariant()
    def one_trainer_works(self) -> None:
        assert sum(machines.is_training for machines in self.machines.values()) <= 1

    @invariant()
    def no_launcher_crashes(self) -> None:
        for program in [*self.programs, *self.ended]:
            if program and not isinstance(program.error, UserError | KilledError | None):
                raise program.error

    # What launchers do.

    def sleep(self, seconds: float) -> None:
        program = current()
        if program is None:
            self.passes(seconds)
        else:
            program.until = self.bucket.now + seconds
            program.pause("sleep")

    def start(self, who: int, work: Callable[[], object]) -> None:
        if program := self.programs[who]:
            self.ended.append(program)
        self.programs[who] = Program(f"launcher {who}", work)

    def is_free(self, who: int) -> bool:
        program = self.programs[who]
        return program is None or not program.is_alive

    @rule(who=WHO, topology=st.sampled_from(["v4-8", "v4-8", "v4-8", "v3-8"]))
    def user_runs_it(self, who: int, topology: str) -> None:
        if self.is_free(who):
            of = job(topology, limits=LIMITS)

            def run() -> object:
                self.sleep(1.0)  # what it checks takes longer than an API needs for a request
                return tpu.Tpu(zone="z").run(of)

            self.start(who, run)

    @rule(really=RARELY, deletes=st.booleans())
    def user_ends_it(self, really: bool, deletes: bool) -> None:
        if really and self.is_free(2):
            self.start(2, self.delete if deletes else self.stop)

    def delete(self) -> None:
        teardown.remove("b1", self.bucket, Cloud(self, None), poll=10.0, sleep=self.sleep)

    def stop(self) -> None:
        records, _ = tpu._existing(job("v4-8"))
        teardown.stop("b1", records, Cloud(self, None), poll=10.0, sleep=self.sleep)

    @precondition(lambda self: self.is_at_work())
    @rule(data=st.data(), steps=st.sampled_from([1, 1, 2, 3, 4, 6]))
    def one_moves(self, data: st.DataObject, steps: int) -> None:
        who = data.draw(st.sampled_from(self.is_at_work()))
        for _ in range(steps):
            self.step(who)

    @precondition(lambda self: self.is_at_work())
    @rule(data=st.data())
    def one_looks(self, data: st.DataObject) -> None:
        """It makes all requests of one look, also if it is amid another one."""
        self.look(data.draw(st.sampled_from(self.is_at_work())))

    def look(self, who: int) -> None:
        for _ in range(100):
            self.step(who)
            if self.is_free(who) or self.programs[who].at == "sleep":
                return

    def is_at_work(self) -> list[int]:
        return [who for who in range(3) if not self.is_free(who)]

    @precondition(lambda self: not self.is_free(0) or not self.is_free(1))
    @rule(who=WHO)
    def all_goes_well(self, who: int) -> None:
        for _ in range(4):
            self.look(who)
            self.what_goes_is_gone()
        for _ in range(2):
            if machines := self.some(False, *STARTING[:2]):
                machines.state = STARTING[STARTING.index(machines.state) + 1]
        self.look(who)
        if self.some(False, "ACTIVE"):
            self.a_host_moves(False)

    def step(self, who: int) -> None:
        program = self.programs[who]
        if program and program.is_alive:
            if program.at == "sleep" and self.bucket.now < program.until:
                self.passes(program.until - self.bucket.now)
            program.step()
            self.note_records()

    @precondition(lambda self: self.is_at_work())
    @rule(who=st.integers(0, 2), how=st.sampled_from(["before", "after"]))
    def a_request_is_lost(self, who: int, how: str) -> None:
        if (program := self.programs[who]) and program.is_alive and program.at != "sleep":
            program.fault = how
            self.step(who)
            program.fault = ""

    @precondition(lambda self: self.is_at_work())
    @rule(who=st.integers(0, 2), really=RARELY)
    def one_is_killed(self, who: int, really: bool) -> None:
        if really and not self.is_free(who):
            self.was_killed = True
            self.programs[who].kill()

    @rule(seconds=st.sampled_from([1.0, 30.0, 100.0, 1000.0]))
    def passes(self, seconds: float) -> None:
        """A request that was sent is not retried for ever: what changes something arrives within
        the life of a claim, but for `create`, which may hang for as long as it likes."""
        for program in self.programs:
            while program and program.at in ("delete", "write of the bucket"):
                if program is current():
                    break
                program.step()
                self.note_records()
        self.bucket.now += seconds
        for machines in self.machines.values():
            machines.is_going = machines.state == "DELETING"

    @precondition(lambda self: self.is_at_work())
    @rule(is_full=RARELY)
    def capacity_changes(self, is_full: bool) -> None:
        self.is_full = is_full

    # What the cloud does.

    def some(self, first: bool, *states: str) -> Machines | None:
        found = [m for _, m in sorted(self.machines.items()) if m.state in states]
        return found[0 if first else -1] if found else None

    @precondition(lambda self: self.some(False, *STARTING[:2]))
    @rule(first=st.booleans())
    def the_cloud_makes_one(self, first: bool) -> None:
        if machines := self.some(first, *STARTING[:2]):
            machines.state = STARTING[STARTING.index(machines.state) + 1]

    @precondition(lambda self: self.some(False, *STARTING[:2]))
    @rule(first=st.booleans(), really=RARELY)
    def the_cloud_has_no_capacity(self, first: bool, really: bool) -> None:
        machines = self.some(first, *STARTING[:2])
        if really and machines:
            machines.state, machines.code, machines.error = "FAILED", 8, NO_CAPACITY

    @precondition(lambda self: self.some(False, "ACTIVE"))
    @rule(first=st.booleans())
    def the_cloud_preempts_one(self, first: bool) -> None:
        machines = self.some(first, "ACTIVE")
        if machines is None:
            return
        counted = machines.last_code == STOPPED
        ended = machines.coordinator and machines.coordinator.plan.final
        if self.is_wanted(machines) and not counted and not ended:
            self.happened[machines.of][STOPPED] += 1
            machines.preempted = True
        machines.coordinator, machines.state = None, "SUSPENDING"

    @precondition(lambda self: self.some(False, "DELETING", "SUSPENDING"))
    @rule()
    def what_goes_is_gone(self) -> None:
        """Not at once: machines take longer to go than any request that was sent before."""
        for number, machines in list(self.machines.items()):
            if machines.is_going:
                del self.machines[number]
            elif machines.state == "SUSPENDING":
                machines.state = "SUSPENDED"

    def is_wanted(self, machines: Machines) -> bool:
        records = self.records(machines.of)
        return bool(records and records.wanted(machines.number, machines.of[1]))

    # What hosts do.

    @precondition(lambda self: self.some(False, "ACTIVE"))
    @rule(first=st.booleans())
    def a_host_moves(self, first: bool) -> None:
        """It boots, or reports; also the last thing that happens before an attempt."""
        if machines := self.some(first, "ACTIVE"):
            if machines.coordinator is None:
                self.boots(machines)
            else:
                self.reports(machines, RUNNING if machines.is_training else READY)

    def boots(self, machines: Machines) -> None:
        records = Records(self.bucket, machines.of[0])
        if records.wanted(machines.number, machines.of[1]) is None:
            self.gives_back(machines)
            return
        restarts, plan = used(records.snapshot().histories), records.plan(machines.number)
        now = self.bucket.now
        machines.coordinator = Coordinator(1, plan, restarts, LIMITS, now)
        machines.boot = f"boot {now} {len(plan.attempts)}"
        self.reports(machines, INSTALLING)
        self.reports(machines, READY)

    def gives_back(self, machines: Machines) -> None:
        if self.may_delete:
            machines.state, machines.coordinator = "DELETING", None

    def reports(self, machines: Machines, stage: str, code: int | None = None) -> None:
        records = self.records(machines.of)
        if records is None:  # deleted, while its machines were to go
            return
        if not machines.is_training and records.is_retired(machines.number):
            self.gives_back(machines)
            return
        machines.silent_at = self.silent_since(machines)
        plan, number = machines.coordinator.plan, machines.number
        records.set_host(number, 0, HostState(machines.boot, stage, len(plan.attempts), code))
        snapshot = records.snapshot()
        events = Events(stopping=snapshot.stopping or snapshot.end is not None)
        machines.coordinator.advance(snapshot.hosts[number], events, self.bucket.now + 100.0)
        if machines.coordinator.plan != plan:
            records.set_plan(number, machines.coordinator.plan)

    @precondition(lambda self: any(machines.is_training for machines in self.machines.values()))
    @rule(first=st.booleans(), code=st.sampled_from([0, 1, 42, 42, 43, 43]))
    def an_attempt_ends(self, first: bool, code: int) -> None:
        machines = self.some(first, "ACTIVE")
        if not machines or not machines.is_training or not self.records(machines.of):
            return
        snapshot = self.records(machines.of).snapshot()
        given_up = self.given_up.get(machines.of, {}).get(machines.number, "no")
        if (
            code in (STOPPED, LOST)
            and not snapshot.stopping
            and not snapshot.end
            and given_up != code
        ):
            self.happened[machines.of][code] += 1
        self.reports(machines, RUNNING, code)

    @precondition(lambda self: self.some(False, "ACTIVE"))
    @rule(first=st.booleans())
    def a_host_leaves(self, first: bool) -> None:
        machines = self.some(first, "ACTIVE")
        final = machines and machines.coordinator and machines.coordinator.plan.final
        if final and (records := self.records(machines.of)):
            records.set_end(final)
            self.gives_back(machines)

    # However it went, `stop` ends it, and all launchers leave.

    def teardown(self) -> None:
        try:
            self.is_full = False
            self.end_all()
            for _ in range(4):
                self.passes(1.0)
                self.what_goes_is_gone()
                for machines in list(self.machines.values()):
                    # A launcher that was killed cannot have given back what it had requested.
                    assert self.was_killed, f"{machines} is left"
                    machines.state, self.may_delete = "ACTIVE", True
                    self.boots(machines)
            assert not self.machines
        finally:
            for program in filter(None, self.programs):
                program.kill()
            for patch in self.patches:
                patch.stop()

    def end_all(self) -> None:
        """Stops the job until no launcher is left: one may run it after the first `stop`."""
        self.finish(2)
        for _ in range(5):
            if all(self.is_free(who) for who in (0, 1)):
                break
            self.start(2, self.stop)
            self.finish(2)
            for who in (0, 1):
                self.finish(who, steps=200)
        assert self.is_free(0), f"launcher 0 is at {self.programs[0].at} for ever"
        assert self.is_free(1), f"launcher 1 is at {self.programs[1].at} for ever"
        if self.machines:
            self.start(2, self.stop)
            self.finish(2)
        self.no_launcher_crashes()

    def finish(self, who: int, steps: int = 5000) -> None:
        for _ in range(steps):
            if self.is_free(who):
                return
            if self.programs[who].at == "sleep":
                self.what_goes_is_gone()
            self.step(who)


TestLaunchers = Launchers.TestCase
TestLaunchers.settings = settings(max_examples=12, stateful_step_count=40, deadline=None)


@pytest.mark.slow
class TestLaunchersForLonger(Launchers.TestCase):
    settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
