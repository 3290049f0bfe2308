"""Submits a job on queued resources, or finds its submission that runs.

A submission is a folder of records, numbered from 1; the newest is the job.
"""

import dataclasses
import uuid
from collections.abc import Iterable

from bert_jax.errors import UserError
from bert_jax.launch.bundle_name import bundle_name
from bert_jax.launch.output import say
from bert_jax.launch.tpu.bucket import Bucket
from bert_jax.launch.tpu.job_records import Records, Snapshot
from bert_jax.launch.tpu.submission import Submission
from bert_jax.launch.tpu.watch import Api


class OtherCommandError(Exception):
    """The job runs another command, or on other machines: `topology`."""

    def __init__(self, topology: str):
        super().__init__(topology)
        self.topology = topology


def runs(names: Iterable[str]) -> list[int]:
    """Returns the numbers of the submissions that objects of a job are of, oldest first."""
    return sorted({int(name[:4]) for name in names if name.endswith("/job.json")})


def newest(bucket: Bucket) -> tuple[Records, Snapshot] | None:
    """Returns the newest submission of a job, None if there is none."""
    for run in reversed(runs(entry.name for entry in bucket.list("0"))):
        records = Records(bucket, run)
        return records, records.snapshot()
    return None


def is_current(snapshot: Snapshot, wanted: Submission) -> bool:
    """Returns whether a submission is what is wanted, and running or not to be submitted again.

    Raises:
        OtherCommandError: another one is running.
    """
    found = snapshot.submission
    if found is None:
        return False
    same = found.digest == wanted.digest
    if snapshot.end is None and not same:
        raise OtherCommandError(found.topology)
    if snapshot.end and snapshot.end.code == 0:
        return same and found.bundle == wanted.bundle
    return same and not snapshot.reported


def submit(
    name: str,
    bucket: Bucket,
    api: Api,
    before: tuple[Records, Snapshot] | None,
    wanted: Submission,
    archive: bytes,
) -> Records:
    """Writes what the hosts run; the machines are requested by a watcher.

    name: of the job. before: its newest submission. archive: the bundle of the one that is wanted.

    Raises:
        UserError: another launcher has just submitted it.
    """
    numbers = [resource.number for resource in api.list()]
    names = [entry.name for entry in bucket.list("0")]
    if runs(names)[-1:] != ([before[0].run] if before else []):
        raise UserError(f"--name={name}: was just started or deleted by another command; run again")
    # After a folder without job.json, too: a launcher may write to it after the job was deleted.
    run = 1 + max((int(name[:4]) for name in names), default=0)
    if before:
        _, snapshot = before
        numbers += [history.number for history in snapshot.histories]
        numbers += [snapshot.submission.first] if snapshot.submission else []
    first = max(numbers, default=0) + 1  # no name is used twice
    bundle = f"{bundle_name(wanted.bundle)}.tar"
    if not any(entry.size == len(archive) for entry in bucket.list(bundle)):
        say(f"{bucket.url}/{bundle}: {len(archive) / 1e6:.1f} MB of code")
        bucket.write(bundle, archive)
    submission = dataclasses.replace(wanted, first=first, id=uuid.uuid4().hex[:12])
    if not bucket.write_json(f"{run:04d}/job.json", submission.to_json(), new=True):
        raise UserError(f"--name={name}: was just started by another launcher; run again")
    return Records(bucket, run)
