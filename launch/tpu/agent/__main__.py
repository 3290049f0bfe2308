"""Starts the agent of this host: `python3 agent.zip`, by the startup script of its machine."""

import json
import os
import sys
import time
from pathlib import Path

from bert_jax.launch.tpu.agent.host import Host
from bert_jax.launch.tpu.agent.machine import Machine, MachineError
from bert_jax.launch.tpu.bucket import Bucket, BucketError
from bert_jax.launch.tpu.job_records import Records
from bert_jax.launch.tpu.submission import RESOURCE

_RETRY = 10.0  # seconds between two looks at metadata that is not complete yet


def main() -> int:
    machine = Machine()
    home = Path(os.environ.get("BERT_JAX_HOME", "/var/lib/bert-jax"))
    while True:
        try:
            about = json.loads(machine.attribute(RESOURCE) or "null")
            place = machine.place()
            records = Records(Bucket(about["records"], machine.token), about["run"])
            submission = records.wanted(about["number"], about.get("submission", ""))
            break
        except (MachineError, BucketError, TypeError) as error:
            print(f"agent | {error}", file=sys.stderr, flush=True)
            time.sleep(_RETRY)
    if submission is None:  # the machines were requested late, or could not go
        print("agent | the job has no use for these machines; deleting them", file=sys.stderr)
        try:
            machine.delete_resource(about["name"])
        except MachineError as error:  # another host was first, or it may not
            print(f"agent | {error}", file=sys.stderr)
        return 0
    home.mkdir(parents=True, exist_ok=True)
    Host(machine, place, records, submission, about["number"], about["name"], home).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
