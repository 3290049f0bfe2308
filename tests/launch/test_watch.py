"""What a launcher does at one look, with records in memory."""

import dataclasses

import pytest
from memory_bucket import MemoryBucket

from bert_jax.exit_codes import LOST
from bert_jax.launch.restarts import Limits
from bert_jax.launch.tpu.history import READY, End, HostState
from bert_jax.launch.tpu.job_records import Records
from bert_jax.launch.tpu.reconcile import Resource
from bert_jax.launch.tpu.submission import Submission
from bert_jax.launch.tpu.watch import ABSENT, OtherLauncherError, Watcher


class Cloud:
    """Queued resources that exist, and those that a launcher has deleted."""

    def __init__(self, *resources: Resource):
        self.resources, self.deleted = list(resources), []

    def list(self) -> list[Resource]:
        return self.resources

    def create(self, number: int) -> None:
        self.resources.append(Resource(number, "ACCEPTED"))

    def delete(self, number: int) -> None:
        self.deleted.append(number)


def records_of(bucket: MemoryBucket, run: int, first: int, hosts: int = 1) -> Records:
    """The records of a new submission."""
    submission = Submission(
        digest="", topology="v4-8", hosts=hosts, first=first, bundle="", version="", words=(),
        python_path=(), env=(), env_from=(), limits=Limits(max_failures=1),
    )  # fmt: skip
    bucket.write_json(f"{run:04d}/job.json", dataclasses.asdict(submission))
    return Records(bucket, run)


def test_the_machines_of_the_next_submission_are_left_alone():
    """A job that has ended may be submitted again before its launcher has looked for the last
    time."""
    bucket, cloud = MemoryBucket(), Cloud(Resource(1, "ACTIVE"), Resource(2, "PROVISIONING"))
    ended, said = records_of(bucket, 1, 1), []
    ended.set_end(End(42, "stopped"))
    records_of(bucket, 2, 2)
    launcher = Watcher("b1", ended, cloud, said.append, poll=10.0)
    assert launcher.tick() is None
    assert cloud.deleted == [1]
    del cloud.resources[0]
    assert launcher.tick() == End(42, "stopped")
    assert cloud.deleted == [1]


def test_machines_of_which_a_host_never_reports_are_given_up():
    """Also if none does, because their account may not write to the bucket; then the job ends, and
    nothing more is paid for."""
    bucket, cloud, said = MemoryBucket(), Cloud(Resource(1, "ACTIVE")), []
    records = records_of(bucket, 1, 1, hosts=2)
    launcher = Watcher("b1", records, cloud, said.append, poll=10.0)
    launcher.tick()
    records.set_host(1, 0, HostState("boot", READY))
    bucket.now += ABSENT - 20.0  # the host 0 reports until then
    records.set_host(1, 0, HostState("boot", READY))
    launcher.tick()
    assert records.snapshot().histories[0].retired is None
    bucket.now += 40.0
    launcher = Watcher("b1", records, cloud, said.append, poll=10.0)  # a launcher may have died
    launcher.tick()
    why = "host-1: no report in the first 40 minutes"
    retired = records.snapshot().histories[0].retired
    assert (retired.code, retired.why) == (LOST, why)
    assert said[-1] == f"b1-1: {why}; starting again in 1 s (0 of 1 failures left)"
    launcher.tick()
    assert cloud.deleted == [1]
    cloud.resources[:] = [Resource(2, "ACTIVE")]
    launcher.tick()
    bucket.now += ABSENT + 1.0
    launcher.tick()
    assert records.snapshot().end.code == LOST
    launcher.tick()
    assert cloud.deleted == [1, 2]


def test_a_launcher_that_ends_makes_room_for_another_at_once():
    """One that is killed is waited for until it is taken for gone."""
    bucket = MemoryBucket()
    records, waited = records_of(bucket, 1, 1), []

    def launcher() -> Watcher:
        made = Watcher("b1", records, Cloud(), [].append, poll=10.0, sleep=waited.append)
        made._me["host"] = f"laptop {id(made)}"  # neither sees the other's process
        return made

    first, second = launcher(), launcher()
    first.claim()
    with pytest.raises(OtherLauncherError, match="another launcher"):
        second.claim()
    assert len(waited) == 1
    first.release()
    second.claim()
    assert len(waited) == 1
    first.release()  # not the claim of the other
    with pytest.raises(OtherLauncherError):
        first.claim()


def test_machines_of_a_job_that_was_run_again_are_not_taken_for_those_of_a_deleted_one(monkeypatch):
    """Their name is free once those are gone, which is later than the list."""
    cloud = Cloud(Resource(1, "ACTIVE", submission="old"))
    bucket = MemoryBucket()
    launcher = Watcher("b1", Records(bucket, 1), cloud, [].append, poll=10.0, submission="old")
    newer = Resource(1, "ACTIVE", submission="new")
    lists = iter([list(cloud.resources), [newer], [newer], [newer], []])
    monkeypatch.setattr(cloud, "list", lambda: next(lists))
    assert launcher.tick() is None
    records_of(bucket, 1, 1)
    assert launcher.tick().why == "the job was deleted"
    assert cloud.deleted == []


def test_machines_that_another_launcher_deletes_are_not_deleted_again(monkeypatch):
    """The request could arrive once they are gone, and their name is that of a new job's."""
    cloud = Cloud()
    launcher = Watcher("b1", Records(MemoryBucket(), 1), cloud, [].append, poll=10.0)
    before, now = (
        [Resource(number, state, submission="old") for number, state in enumerate(states, 1)]
        for states in (("ACTIVE", "ACTIVE", "DELETING"), ("DELETING", "ACTIVE", "DELETING"))
    )
    lists = iter([before, now])
    monkeypatch.setattr(cloud, "list", lambda: next(lists))
    assert launcher.tick() is None
    assert cloud.deleted == [2]
