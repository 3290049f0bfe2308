"""Queued resources of a job, whatever happens: events in any order, API faults, dead launchers."""

import functools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from memory_bucket import MemoryBucket

from bert_jax.exit_codes import LOST, STOPPED
from bert_jax.launch.restarts import Limits
from bert_jax.launch.tpu import submit, teardown
from bert_jax.launch.tpu.agent.coordinator import Coordinator, Events
from bert_jax.launch.tpu.bucket import BucketError
from bert_jax.launch.tpu.history import INSTALLING, READY, RUNNING, HostState, used
from bert_jax.launch.tpu.job_records import Records
from bert_jax.launch.tpu.queued_resources import ApiError
from bert_jax.launch.tpu.reconcile import Resource, transient_code
from bert_jax.launch.tpu.submission import Submission
from bert_jax.launch.tpu.watch import ABSENT, SILENT, Watcher

NO_CAPACITY = 'There is no more capacity in the zone "us-west4-a"; try another [EID: 0x1]'
NO_QUOTA = "Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0"
LIMITS = Limits(max_preemptions=2, max_failures=1, grace=0.0, noticing=0.0, margin=0.0)
FAULTS = (
    *[""] * 8, "at the list", "killed at the list", "before the change", "after the change",
    "killed before the change", "killed after the change",
)  # fmt: skip
RARELY = st.sampled_from([False] * 15 + [True])  # what ends a job, or most would end early
STARTING = ("WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")


class KilledError(BaseException):
    """The launcher is killed at this point."""


class Cloud:
    """The API of queued resources, with faults; checks every request."""

    def __init__(self, machine: "Machines"):
        self.machine = machine
        self.resources: dict[int, Resource] = {}
        self.fault = ""  # one of FAULTS

    def fail(self, call: str) -> None:
        if self.fault == call:
            raise ApiError("UNAVAILABLE: try again", "UNAVAILABLE", transient_code("UNAVAILABLE"))
        if self.fault == f"killed {call}":
            raise KilledError

    def list(self) -> list[Resource]:
        self.fail("at the list")
        return [self.resources[number] for number in sorted(self.resources)]

    def create(self, number: int) -> None:
        self.fail("before the change")
        if number not in self.resources:
            self.machine.check_create(number)
            self.resources[number] = Resource(number, STARTING[0])
        self.fail("after the change")

    def delete(self, number: int) -> None:
        self.fail("before the change")
        if number in self.resources:
            self.machine.check_delete(self.resources[number])
            self.move(number, "DELETING")
        self.fail("after the change")

    def move(self, number: int, state: str, code: int = 0, error: str = "") -> None:
        self.resources[number] = Resource(number, state, code, error)


def submission_of(topology: str) -> Submission:
    """What the user asks for; another topology is another job."""
    return Submission(
        digest=topology, topology=topology, hosts=1, first=1, bundle="", version="", words=(),
        python_path=(), env=(), env_from=(), limits=LIMITS,
    )  # fmt: skip


class Machines(RuleBasedStateMachine):
    """A job of one host, the cloud it runs in, launchers that die, and what is expected of them.

    The user stops it, deletes it and runs it again, also on other slices.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bucket, self.cloud = MemoryBucket(), Cloud(self)
        self.said: list[str] = []
        self.watcher: Watcher | None = None
        self.late: list[Watcher] = []  # launchers of earlier submissions that are still alive
        self.coordinator: Coordinator | None = None  # the agent of the resource that works
        self.host_records: Records  # of its submission
        self.boot = ""
        self.submissions: list[Records] = []
        self.deleted = True  # nothing of the job exists
        self.submit("v4-8")

    def submit(self, topology: str) -> None:
        """As `run` does; nothing is expected of earlier submissions any more."""
        if self.watcher:
            self.late.append(self.watcher)
        before, wanted = submit.newest(self.bucket), submission_of(topology)
        records = submit.submit("job", self.bucket, self.cloud, before, wanted, b"")
        if self.deleted:
            self.submissions.clear()
        self.submissions.append(records)
        self.records, self.watcher, self.deleted = records, None, False
        self.first = records.submission().first
        self.happened = {STOPPED: 0, LOST: 0}  # preemptions and failures
        self.given_up: dict[int, int | None] = {}  # what that costs, by resource
        self.has_left = False

    def owner(self, number: int) -> Records:
        """The submission that a resource was requested for."""
        return [r for r in self.submissions if r.submission().first <= number][-1]

    # What must hold.

    def check_create(self, number: int) -> None:
        assert not self.cloud.resources, "two resources of a job"
        assert not self.deleted
        counted = used(self.records.snapshot().histories)
        assert {STOPPED: counted.preemptions, LOST: counted.failures} == self.happened
        assert self.happened[STOPPED] <= LIMITS.max_preemptions
        assert self.happened[LOST] <= LIMITS.max_failures

    def check_delete(self, resource: Resource) -> None:
        """A resource that works or is being made is deleted only after the job's end."""
        snapshot = self.owner(resource.number).snapshot()
        if resource.state in STARTING and not snapshot.end:
            assert resource.state == "ACTIVE"
            assert [h.number for h in snapshot.histories if h.retired][-1:] == [resource.number]

    @invariant()
    def at_most_one_resource_exists(self) -> None:
        assert len(self.cloud.resources) <= 1

    @invariant()
    def nothing_is_left_by_a_job_that_has_ended(self) -> None:
        if self.has_left or self.deleted:
            assert not self.cloud.resources

    @property
    def silent(self) -> bool:
        """Whether the host of the newest resource has not reported for too long."""
        number = max(self.cloud.resources, default=0)
        hosts, made = self.records.hosts(number), self.records.snapshot().active.get(number, 0.0)
        return any(age > SILENT for _, age in hosts.values()) or (not hosts and made > ABSENT)

    @property
    def newest(self) -> Resource | None:
        return next(iter(self.cloud.resources.values()), None)

    def is_in(self, *states: str) -> bool:
        return self.newest is not None and self.newest.state in states

    # What launchers do.

    @precondition(lambda self: self.late)
    @rule()
    def a_late_launcher_looks(self) -> None:
        """It sees the end of its own submission, and leaves what followed alone."""
        before = dict(self.cloud.resources)
        self.late = [watcher for watcher in self.late if watcher.tick() is None]
        mine = {n: r for n, r in before.items() if n >= self.first}
        assert {n: r for n, r in self.cloud.resources.items() if n >= self.first} == mine

    @precondition(lambda self: not self.deleted and not self.has_left)
    @rule(fault=st.sampled_from(FAULTS), of_bucket=st.sampled_from(FAULTS))
    def launcher_looks(self, fault: str, of_bucket: str) -> None:
        """fault: of a call to the API. of_bucket: of a write to the bucket."""
        self.cloud.fault = fault

        def fail(where: str, what: str) -> None:
            if what == "write" and f"{where} the change" in of_bucket:
                self.bucket.before = self.bucket.after = lambda what: None
                raise KilledError if "killed" in of_bucket else BucketError("503")

        try:
            if self.watcher is None:
                self.watcher = Watcher(
                    "job", self.records, self.cloud, self.said.append, poll=10.0,
                    sleep=lambda seconds: self.passes(seconds + 1),
                )  # fmt: skip
                self.watcher.claim()
            self.bucket.before = functools.partial(fail, "before")
            self.bucket.after = functools.partial(fail, "after")
            self.has_left = self.watcher.tick() is not None
        except KilledError:
            self.watcher = None
        finally:
            self.cloud.fault = ""
            self.bucket.before = self.bucket.after = lambda what: None
            self.note_given_up()
        if self.has_left:
            self.watcher.release()
            self.records.mark("reported")
            self.watcher = None

    def note_given_up(self) -> None:
        """Counts the machines that a launcher has given up because their host is silent."""
        for history in self.records.snapshot().histories:
            retired = history.retired
            if retired and history.number not in self.given_up:
                self.given_up[history.number] = retired.code
                if retired.code == LOST:
                    assert self.silent
                    assert self.last_code() != LOST, "the attempt has counted"
                    self.happened[LOST] += 1

    @rule()
    def launcher_is_killed(self) -> None:
        self.watcher = None

    @rule(seconds=st.sampled_from([1.0, 70.0, 1000.0]))
    def passes(self, seconds: float) -> None:
        self.bucket.now += seconds

    @precondition(lambda self: not self.deleted and not self.has_left)
    @rule()
    def all_goes_well(self) -> None:
        """A launcher without faults brings a job to an attempt or to its end."""
        for _ in range(8):
            if not self.has_left:
                self.launcher_looks("", "")
            self.while_waiting(1.0)
            if not self.cloud.resources:
                self.passes(1000.0)  # the pause after there was no capacity
        while self.is_in(*STARTING[:2]):
            self.the_cloud_makes_it()
        if self.is_in("ACTIVE") and self.coordinator is None:
            self.the_host_boots()
        assert self.is_in("ACTIVE") or self.has_left

    # What the cloud does.

    @precondition(lambda self: self.is_in(*STARTING[:2]))
    @rule()
    def the_cloud_makes_it(self) -> None:
        resource = self.newest
        self.cloud.move(resource.number, STARTING[STARTING.index(resource.state) + 1])

    @precondition(lambda self: self.is_in(*STARTING[:2]))
    @rule()
    def the_cloud_has_no_capacity(self) -> None:
        self.cloud.move(self.newest.number, "FAILED", 8, NO_CAPACITY)

    @precondition(lambda self: self.is_in(STARTING[0]))
    @rule(really=RARELY)
    def the_cloud_has_no_quota(self, really: bool) -> None:
        if really:
            self.cloud.move(self.newest.number, "FAILED", 8, NO_QUOTA)

    @precondition(lambda self: self.is_in("ACTIVE"))
    @rule()
    def the_cloud_preempts_it(self) -> None:
        announced = self.newest.number < self.first or (
            self.coordinator and self.last_code() == STOPPED
        )
        ended = self.coordinator and self.coordinator.plan.final
        if not announced and not ended and self.newest.number not in self.given_up:
            self.happened[STOPPED] += 1
        self.coordinator = None
        self.cloud.move(self.newest.number, "SUSPENDING")

    @precondition(lambda self: self.is_in("SUSPENDING"))
    @rule()
    def the_cloud_has_preempted_it(self) -> None:
        self.cloud.move(self.newest.number, "SUSPENDED")

    @precondition(lambda self: self.is_in("DELETING"))
    @rule()
    def the_cloud_has_deleted_it(self) -> None:
        self.coordinator = None
        del self.cloud.resources[self.newest.number]

    # What host 0 does.

    def last_code(self) -> int | None:
        attempts = self.coordinator.plan.attempts if self.coordinator else ()
        return attempts[-1].code if attempts else None

    def host_reports(self, stage: str, code: int | None = None) -> None:
        number, records = self.newest.number, self.host_records
        attempt = len(self.coordinator.plan.attempts)
        records.set_host(number, 0, HostState(self.boot, stage, attempt, code))
        snapshot, before = records.snapshot(), self.coordinator.plan
        events = Events(stopping=snapshot.stopping or snapshot.end is not None)
        self.coordinator.advance(snapshot.hosts[number], events, self.bucket.now + 100.0)
        if self.coordinator.plan != before:
            records.set_plan(number, self.coordinator.plan)

    @precondition(lambda self: self.is_in("ACTIVE") and self.coordinator is None)
    @rule()
    def the_host_boots(self) -> None:
        number = self.newest.number
        records = self.host_records = self.owner(number)
        snapshot, plan = records.snapshot(), records.plan(number)
        if snapshot.end:  # it gives the machines back
            self.cloud.move(number, "DELETING")
            return
        restarts = used(snapshot.histories)
        self.coordinator = Coordinator(1, plan, restarts, LIMITS, self.bucket.now)
        self.boot = f"boot {self.bucket.now} {len(plan.attempts)}"
        self.host_reports(INSTALLING)
        self.host_reports(READY)

    @precondition(lambda self: self.is_in("ACTIVE") and self.coordinator)
    @rule()
    def the_host_reports(self) -> None:
        """Also the last thing that happens before an attempt after a pause."""
        running = self.coordinator.plan.is_running
        self.host_reports(RUNNING if running else READY)

    @precondition(
        lambda self: self.is_in("ACTIVE") and self.coordinator and self.coordinator.plan.is_running
    )
    @rule(code=st.sampled_from([0, 1, 42, 42, 43, 43, 44]))
    def the_attempt_ends(self, code: int) -> None:
        snapshot, number = self.host_records.snapshot(), self.newest.number
        self.host_reports(RUNNING, code)
        over = snapshot.stopping or snapshot.end or number < self.first
        if code in self.happened and not over and self.given_up.get(number) != code:
            self.happened[code] += 1

    @precondition(lambda self: self.coordinator and self.coordinator.plan.final)
    @rule(deletes=st.booleans())
    def the_host_leaves(self, deletes: bool) -> None:
        """It may lack the permission to delete the machines."""
        self.host_records.set_end(self.coordinator.plan.final)
        if deletes and self.is_in("ACTIVE"):
            self.cloud.move(self.newest.number, "DELETING")

    # What the user does.

    @precondition(lambda self: not self.deleted)
    @rule(really=RARELY)
    def the_user_asks_the_job_to_stop(self, really: bool) -> None:
        if really:
            self.records.mark("stop")

    @precondition(lambda self: not self.deleted and self.watcher is None)
    @rule(really=RARELY)
    def the_user_stops_the_job(self, really: bool) -> None:
        """Also without an answer of the host."""
        if really:
            teardown.stop("job", self.records, self.cloud, poll=10.0, sleep=self.while_waiting)
            self.has_left = True
            assert not self.cloud.resources

    @precondition(lambda self: not self.deleted and self.watcher is None)
    @rule(really=RARELY)
    def the_user_deletes_the_job(self, really: bool) -> None:
        if really:
            teardown.remove("job", self.bucket, self.cloud, poll=10.0, sleep=self.while_waiting)
            self.deleted, self.late = True, []
            assert self.bucket.list() == []

    @rule(topology=st.sampled_from(["v4-8", "v4-16"]))
    def the_user_runs_it(self, topology: str) -> None:
        """The same command or one for other slices, whatever has become of the job."""
        newest, wanted = submit.newest(self.bucket), submission_of(topology)
        try:
            is_current = newest is not None and submit.is_current(newest[1], wanted)
        except submit.OtherCommandError:
            assert newest[1].end is None
            return
        end = newest[1].end if newest else None
        if is_current:  # one that has ended with an error is run once more when that is known
            assert not end or end.code == 0 or not newest[1].reported
        else:
            assert newest is None or end
            self.submit(topology)

    def while_waiting(self, seconds: float) -> None:
        self.passes(seconds)
        if self.is_in("DELETING"):
            self.the_cloud_has_deleted_it()
        elif self.is_in("SUSPENDING"):
            self.the_cloud_has_preempted_it()

    def teardown(self) -> None:
        """However it went, `stop` ends it."""
        if not self.deleted:
            teardown.stop("job", self.records, self.cloud, poll=10.0, sleep=self.while_waiting)
        assert not self.cloud.resources


TestMachines = Machines.TestCase
TestMachines.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
