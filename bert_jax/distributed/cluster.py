"""Finds the process topology of a job from flags, environment or cluster."""

import dataclasses
import os
import socket
import threading

from bert_jax.distributed.rendezvous import split_address
from bert_jax.errors import LostError, UserError


@dataclasses.dataclass(frozen=True)
class ProcessTopology:
    """Process id, number of processes, and the address of process 0."""

    coordinator: str  # "host:port"
    num_processes: int
    process_id: int
    local_device_ids: tuple[int, ...] | None = None  # None: all devices of this machine
    found_by: str = "flags"  # or the kind of cluster, or "alone"


# JAX's name of a cluster -> its common name, and where its values come from.
_CLUSTERS = {
    "ompi": "Open MPI (OMPI_COMM_WORLD_*, OMPI_MCA_orte_hnp_uri)",
    "slurm": "SLURM (SLURM_JOB_ID, _STEP_NODELIST, _NTASKS, _PROCID, _LOCALID)",
    "gketpu": "GKE with TPUs (TPU_WORKER_ID, TPU_WORKER_HOSTNAMES, MEGASCALE_*)",
    "gcetpu": "a Cloud TPU VM (its metadata server, MEGASCALE_*)",
    "k8s": "Kubernetes (its Job, its pod)",
}
_FLAGS = "give --coordinator, --num_processes and --process_id instead"


def find_topology(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: float = 300.0,
) -> ProcessTopology:
    """Returns the topology from flags or a cluster (TPU VM, GKE, SLURM, …), else one process.

    Raises:
        UserError: flags or values of the cluster are missing or invalid.
        LostError: the cluster does not answer within `timeout` seconds.
    """
    flags = {
        "--coordinator": coordinator,
        "--num_processes": num_processes,
        "--process_id": process_id,
    }
    missing = [name for name, value in flags.items() if value is None]
    if len(missing) == len(flags):
        return _detect(timeout)
    if coordinator is None or num_processes is None or process_id is None:
        raise UserError(
            f"{' and '.join(n for n in flags if n not in missing)} without {' and '.join(missing)};"
            " give all three, or none where the cluster is detected (TPU VM, GKE, SLURM)"
        )
    split_address(coordinator)
    if not 0 <= process_id < num_processes:
        raise UserError(
            f"--process_id={process_id} is out of range for --num_processes={num_processes}: "
            f"give one from 0 to {num_processes - 1}"
        )
    return ProcessTopology(coordinator, num_processes, process_id)


def single_process() -> ProcessTopology:
    """Returns the topology of a single process, with a free port for the coordinator."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return ProcessTopology(f"127.0.0.1:{free.getsockname()[1]}", 1, 0, found_by="alone")


def _detect(timeout: float) -> ProcessTopology:
    """Asks JAX, in a thread, as a metadata or DNS server may never answer."""
    tried: list[str] = []
    answer: list[ProcessTopology | Exception] = []

    def ask() -> None:
        try:
            answer.append(_ask_jax(tried, timeout))
        except Exception as error:  # whatever the cluster's libraries raise
            answer.append(error)

    asking = threading.Thread(target=ask, name="detection", daemon=True)
    asking.start()
    asking.join(timeout)
    result = answer[0] if answer else TimeoutError(f"no answer in {timeout:.0f} s")
    if isinstance(result, ProcessTopology):
        return result
    kind = tried[-1] if tried else ""
    problem = f"{result.args[0]} is not set" if isinstance(result, KeyError) else str(result)
    line = (
        f"this looks like {_CLUSTERS.get(kind, kind)}, but {' '.join(problem.split())[:300]} "
        f"({type(result).__name__}); {_FLAGS}"
    )
    raise (LostError if isinstance(result, OSError) else UserError)(line)


def _ask_jax(tried: list[str], timeout: float) -> ProcessTopology:
    """Returns what `jax.distributed.initialize()` would find; appends each cluster to `tried`."""
    from jax._src.clusters import ClusterEnv  # no public name

    for kind in ClusterEnv._cluster_types:
        if kind.opt_in_only_method:
            continue
        tried.append(kind.name)
        if kind.is_env_present():
            break
    else:
        return single_process()
    coordinator = os.environ.get("JAX_COORDINATOR_ADDRESS")
    dns_timeout = int(timeout) + 60  # longer than the caller waits
    address, count, process, devices = ClusterEnv.auto_detect_unset_distributed_params(
        coordinator, None, None, None, kind.name, dns_timeout
    )
    if not (address and count and process is not None and 0 <= process < count):
        raise ValueError(f"it calls this process {process} of {count}, coordinator {address}")
    split_address(address)
    return ProcessTopology(
        address, count, process, tuple(devices) if devices else None, found_by=kind.name
    )
