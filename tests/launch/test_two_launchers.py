"""Two launchers of a job, interleaved: each lists, reads the records and acts in separate steps."""

from collections.abc import Callable

import pytest
from memory_bucket import MemoryBucket
from stepped import Program, current

from bert_jax.errors import UserError
from bert_jax.launch.restarts import Limits
from bert_jax.launch.tpu import submit, teardown
from bert_jax.launch.tpu.history import RUNNING, Attempt, End, HostState, Plan
from bert_jax.launch.tpu.job_records import Records
from bert_jax.launch.tpu.reconcile import Resource
from bert_jax.launch.tpu.submission import Submission
from bert_jax.launch.tpu.watch import OtherLauncherError, Watcher


class Cloud:
    """The API of queued resources; a program waits before each request."""

    def __init__(self) -> None:
        self.resources: dict[int, Resource] = {}

    def list(self) -> list[Resource]:
        pause("list")
        return [self.resources[number] for number in sorted(self.resources)]

    def create(self, number: int) -> None:
        pause("create")
        self.resources.setdefault(number, Resource(number, "WAITING_FOR_RESOURCES"))

    def delete(self, number: int) -> None:
        pause("delete")
        if number in self.resources:
            self.resources[number] = Resource(number, "DELETING")

    def move(self, number: int, state: str) -> None:
        self.resources[number] = Resource(number, state)


def pause(at: str) -> None:
    if program := current():
        program.pause(at)


class Site:
    """A job of one host, its bucket and its cloud, and launchers of several machines."""

    def __init__(self) -> None:
        self.bucket, self.cloud = MemoryBucket(), Cloud()
        self.bucket.before = lambda what: pause(f"{what} of the bucket")
        self.programs: list[Program] = []
        self.records = self.submit()

    def submit(self) -> Records:
        before = submit.newest(self.bucket)
        wanted = Submission(
            digest="d", topology="v4-8", hosts=1, first=1, bundle="", version="", words=(),
            python_path=(), env=(), env_from=(), limits=Limits(max_failures=1, grace=0.0),
        )  # fmt: skip
        return submit.submit("b1", self.bucket, self.cloud, before, wanted, b"")

    def start(self, name: str, work: Callable[[], object]) -> Program:
        self.programs.append(Program(name, work))
        return self.programs[-1]

    def launcher(self, name: str) -> Program:
        watcher = Watcher(
            "b1", self.records, self.cloud, lambda line: None, poll=10.0, sleep=self.sleep
        )
        watcher._me["host"] = name  # none sees whether the process of another has ended

        def work() -> object:
            watcher.claim()
            try:
                return watcher.run()
            finally:
                watcher.release()

        return self.start(name, work)

    def remover(self) -> Program:
        def work() -> None:
            teardown.remove("b1", self.bucket, self.cloud, poll=10.0, sleep=self.sleep)

        return self.start("user", work)

    def sleep(self, seconds: float) -> None:
        if (program := current()) is None:
            self.bucket.now += seconds
            return
        program.until = self.bucket.now + seconds
        program.pause("sleep")

    def run(self, program: Program, until: Callable[[], object] = lambda: False) -> None:
        """Lets one program alone work until a condition holds or it has ended."""
        for _ in range(1000):
            if until() or not program.is_alive:
                return
            if program.at == "sleep":
                self.bucket.now = max(self.bucket.now, program.until)
                self.gone()
            program.step()
        pytest.fail(f"{program.name} is at {program.at} for ever")

    def gone(self) -> None:
        """What is being deleted is gone."""
        for number in [n for n, r in self.cloud.resources.items() if r.state == "DELETING"]:
            del self.cloud.resources[number]

    def trains(self, number: int) -> None:
        """Machines are made, and their host works at the first attempt."""
        self.cloud.move(number, "ACTIVE")
        self.records.set_host(number, 0, HostState("boot", RUNNING, 1))
        self.records.set_plan(number, Plan((Attempt(("boot",)),)))


@pytest.fixture
def site():
    made = Site()
    yield made
    for program in made.programs:
        program.kill()


def test_a_launcher_that_wakes_up_with_an_old_list_does_not_give_up_what_another_made(site):
    """It would count a failure and delete a slice that trains."""
    first, second = site.launcher("laptop"), site.launcher("vm")
    site.run(first, lambda: first.at == "list")
    first.step()  # has listed: nothing exists; now it sleeps
    site.bucket.now += 3600.0
    site.run(second, lambda: site.cloud.resources)
    site.trains(1)
    second.kill()
    site.bucket.now += 100.0
    site.records.set_host(1, 0, HostState("boot", RUNNING, 1))
    looks = site.bucket.now + 100.0
    site.run(first, lambda: site.bucket.now >= looks)
    assert site.records.snapshot().histories[0].retired is None
    assert site.cloud.resources[1].state == "ACTIVE"


@pytest.mark.parametrize("ends", ["alone", "beside another"])
def test_machines_that_are_requested_while_the_job_is_deleted_are_given_back(site, ends):
    first = site.launcher("laptop")
    site.run(first, lambda: first.at == "create")  # which hangs
    site.bucket.now += 3600.0
    user = site.remover()
    site.run(user)
    assert user.error is None
    assert not site.bucket.list()
    first.step()  # the request arrives
    assert site.cloud.resources
    if ends == "beside another":  # the job is run again
        site.records = site.submit()
        second = site.launcher("vm")
        site.run(second, lambda: second.at == "list")
    site.run(first)
    if ends == "alone":
        assert not site.cloud.resources
        assert not site.bucket.list(), "the launcher wrote to the records of a deleted job"
    else:
        assert site.records.snapshot().watching[0]["host"] == "vm"


def test_a_job_that_is_run_again_while_it_is_deleted_ends_before_its_machines_are_deleted(site):
    """Its launcher would count a failure and request others."""
    user = site.remover()
    site.run(user, lambda: site.records.is_marked("reported"))
    site.records = site.submit()
    launcher = site.launcher("vm")
    site.run(launcher, lambda: site.cloud.resources)
    (number,) = site.cloud.resources
    site.trains(number)
    site.run(user, lambda: site.cloud.resources[number].state == "DELETING")
    assert site.records.snapshot().end.code == 42
    site.run(user)
    assert user.error is None
    assert not site.bucket.list()
    site.run(launcher)
    assert not site.cloud.resources


def test_a_launcher_that_leaves_for_another_gives_back_what_nobody_wants(site):
    """The other one may have looked for the last time before the request arrived."""
    first = site.launcher("laptop")
    site.run(first, lambda: first.at == "create")  # which hangs
    site.bucket.now += 3600.0
    site.records.set_end(End(42, "stopped"))
    site.records.watch({"id": "another", "host": "vm", "pid": 1})
    site.run(first)
    assert isinstance(first.error, OtherLauncherError)
    assert [one.state for one in site.cloud.resources.values()] == ["DELETING"]


def test_of_two_commands_that_submit_at_once_one_does(site):
    site.records.set_end(End(0, "done"))
    before = submit.newest(site.bucket)
    wanted = site.records.submission()
    submit.submit("b1", site.bucket, site.cloud, before, wanted, b"")
    with pytest.raises(UserError, match="was just started or deleted by another command"):
        submit.submit("b1", site.bucket, site.cloud, before, wanted, b"")
    assert submit.runs(entry.name for entry in site.bucket.list()) == [1, 2]
