"""Says where a job on queued resources is: its machines, its hosts, its restarts."""

from collections.abc import Iterable, Sequence

from bert_jax.launch.tpu.history import GONE, RUNNING, used
from bert_jax.launch.tpu.job_records import Snapshot
from bert_jax.launch.tpu.queued_resources import resource_name
from bert_jax.launch.tpu.reconcile import Resource

_MAKING = {
    "ACCEPTED": "waiting for capacity", "WAITING_FOR_RESOURCES": "waiting for capacity",
    "CREATING": "creating the machines", "PROVISIONING": "creating the machines",
    "SUSPENDING": "being preempted", "DELETING": "releasing the TPU",
}  # fmt: skip


def where(name: str, resources: Sequence[Resource], snapshot: Snapshot) -> str:
    """Returns where the job is in one line, "" if no queued resource exists."""
    if not resources:
        return ""
    resource = resources[-1]
    start = f"{resource_name(name, resource.number)}: "
    if resource.state != "ACTIVE":
        return start + _MAKING.get(resource.state, resource.state)
    hosts = snapshot.hosts.get(resource.number, {})
    total = snapshot.submission.hosts if snapshot.submission else len(hosts)
    if len(hosts) < total:
        return f"{start}booting, {len(hosts)} of {total} hosts there"
    plan = next((h.plan for h in snapshot.histories if h.number == resource.number), None)
    at_work = sum(state.stage in (RUNNING, GONE) for state, _ in hosts.values())
    if plan is None or not plan.attempts:
        ready = sum(state.stage != "installing" for state, _ in hosts.values())
        return f"{start}installing, {ready} of {total} hosts ready"
    line = hosts[0][0].line if 0 in hosts else ""
    return f"{start}attempt {len(plan.attempts)} on {at_work} of {total} hosts  {line}".rstrip()


def report(name: str, resources: Sequence[Resource], snapshot: Snapshot) -> str:
    """Returns where the job, its restarts and its hosts are, in several lines."""
    restarts = used(snapshot.histories)
    lines = [where(name, resources, snapshot) or "no machine exists"]
    lines.append(f"{restarts.preemptions} preemptions, {restarts.failures} failures so far")
    if snapshot.end:
        lines.append(f"ended with {snapshot.end.code} ({snapshot.end.why})")
    elif snapshot.stopping:
        lines.append("asked to stop")
    number = resources[-1].number if resources else 0
    for index, (state, age) in sorted(snapshot.hosts.get(number, {}).items()):
        at = f"attempt {state.attempt}, " if state.attempt else ""
        lines.append(f"host-{index}: {state.stage}, {at}{age:.0f} s ago  {state.line}".rstrip())
    return "\n".join(lines)


def names_of(hosts: Iterable[int]) -> str:
    """Returns the names of hosts."""
    return ", ".join(f"host-{index}" for index in hosts)
