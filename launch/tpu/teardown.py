"""Ends a job on queued resources on request, and removes what was made for it."""

import socket
import time
from collections.abc import Callable

from bert_jax.errors import UserError
from bert_jax.exit_codes import STOPPED
from bert_jax.launch.output import say
from bert_jax.launch.tpu.bucket import Bucket
from bert_jax.launch.tpu.history import End
from bert_jax.launch.tpu.job_records import Records
from bert_jax.launch.tpu.submit import runs
from bert_jax.launch.tpu.watch import Api, Watcher

_PATIENCE = 120.0  # seconds for hosts to see a request to stop, besides the time to save
_GOING = 900.0  # seconds for machines to be deleted


def stop(
    name: str,
    records: Records,
    api: Api,
    *,
    poll: float,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Stops a job gracefully and waits until no machine of it exists.

    poll: seconds between two looks.

    Raises:
        UserError: machines still exist after a long time.
    """
    records.mark("stop", host=socket.gethostname())
    submission = records.submission()
    if submission is None:
        return
    watcher = Watcher(name, records, api, say, poll=poll, submission=submission.id, sleep=sleep)
    limits = submission.limits
    patience = limits.grace + limits.margin + _PATIENCE
    try:
        if not watcher.settle(patience):
            say(f"{name}: its hosts do not answer; deleting their machines")
            records.set_end(End(STOPPED, "stopped without an answer of its hosts"))
            if not watcher.settle(_GOING):
                line = f"--name={name}: its machines still exist; run the same command again"
                raise UserError(line)
    finally:
        watcher.release()
    records.report(submission.id)  # `run` submits it again


def remove(
    name: str,
    bucket: Bucket,
    api: Api,
    *,
    poll: float,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Ends a job, deletes all queued resources of its name and everything in its folder.

    bucket: of the job's folder.

    Raises:
        UserError: something is left.
    """
    ended: list[int] = []
    while True:
        # In this order: what is listed was requested for a submission that is observed.
        left, entries = api.list(), bucket.list()
        newest = runs(entry.name for entry in entries)[-1:]
        if newest != ended:  # also one that was submitted when the last had ended
            for run in newest:
                stop(name, Records(bucket, run), api, poll=poll, sleep=sleep)
            ended = newest
        elif left:
            for resource in left:
                if resource.state != "DELETING":
                    api.delete(resource.number)
            say(f"{len(left)} queued resources are being deleted")
            sleep(poll)
        else:
            break
    # What marks the job as stopped goes last: until then no launcher requests machines.
    for entry in sorted(entries, key=lambda entry: entry.name.endswith("/stop.json")):
        bucket.delete(entry.name)
    if objects := bucket.list():
        raise UserError(f"{bucket.url}: {len(objects)} objects are left; run the command again")
    say(f"{name}: no queued resource and no object below {bucket.url} exists")
