"""What a launcher does at one look, with records in memory."""

import dataclasses

from memory_bucket import MemoryBucket

from bert_jax.launch.reconcile import Resource
from bert_jax.launch.records import End, Records, Submission
from bert_jax.launch.restarts import Limits
from bert_jax.launch.watch import Watcher


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


def records_of(bucket: MemoryBucket, run: int, first: int) -> Records:
    """The records of a new submission."""
    submission = Submission(
        digest="", topology="v4-8", hosts=1, first=first, bundle="", version="", words=(),
        python_path=(), env=(), env_from=(), limits=Limits(),
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
