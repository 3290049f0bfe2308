"""Checks that all processes see the job that they were started for, before the first array."""

import numpy as np

from bert_jax.distributed.peers import ProcessGroup
from bert_jax.errors import LostError, UserError
from bert_jax.hardware.slices import Slice


def check_devices(peers: ProcessGroup, expected: Slice | None = None) -> None:
    """Checks JAX's numbering of the processes, the devices, and one all-gather over them.

    A TPU runtime forms its network without JAX's coordinator, so each host of a job can see all
    devices and still be process 0 of 1; and a slice that is not complete only fails in the first
    collective, without a name.

    Args:
        expected: the slices that the job was started on; None if that is not known.

    Raises:
        UserError: another numbering, or other devices.
        LostError: the all-gather gives something else than was sent.
    """
    import jax
    from jax.experimental import multihost_utils

    me, count = peers.process_id, peers.num_processes
    index, processes = jax.process_index(), jax.process_count()
    if (index, processes) != (me, count):
        raise UserError(
            f"{peers.name(me)}: for JAX this is process {index} of {processes}, not {me} of "
            f"{count}; start one process on each host, with this job's --process_id and "
            "--num_processes"
        )
    if expected is not None:
        kind, devices = jax.devices()[0].device_kind, len(jax.devices())
        kinds = expected.generation.accelerator.device_kinds
        if kind not in kinds or devices != expected.devices:
            raise UserError(
                f"{peers.name(me)}: this job has {devices} devices of kind {kind}, and "
                f"--topology={expected.name} has {expected.devices} of kind {kinds[0]}"
            )
    if count > 1:
        sent = np.array([me], np.int32)
        received = np.ravel(multihost_utils.process_allgather(sent)).tolist()
        if received != list(range(count)):
            raise LostError(
                f"{peers.name(me)}: an all-gather of the process ids gave {received}; its network "
                "or a device is faulty"
            )
