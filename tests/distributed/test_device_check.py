"""The checks before the first array; every test with several processes passes them for real."""

import types

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from bert_jax.distributed.device_check import check_devices
from bert_jax.errors import LostError, UserError
from bert_jax.hardware import slices


def peers(process: int, count: int) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        process_id=process,
        num_processes=count,
        name=lambda index: f"host-{index} (process {index})",
    )


@pytest.fixture
def two_processes(monkeypatch):
    """JAX as process 1 of 2, whose all-gather works."""
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    gathered = np.array([[0], [1]], np.int32)
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda sent: gathered)


def test_a_complete_job_passes(two_processes):
    check_devices(peers(1, 2))
    check_devices(peers(1, 2), None)


def test_a_host_that_jax_takes_for_process_0_of_1_is_named():
    """As on hosts whose TPU runtime has found the others, but JAX has not."""
    line = r"^host-1 \(process 1\): for JAX this is process 0 of 1, not 1 of 2; start one process"
    with pytest.raises(UserError, match=line):
        check_devices(peers(1, 2))


def test_other_devices_than_those_of_the_topology_are_refused(two_processes):
    line = (
        r"host-1 \(process 1\): this job has \d devices of kind cpu, and --topology=v5e-16 has 16"
    )
    with pytest.raises(UserError, match=line):
        check_devices(peers(1, 2), slices.find("v5e-16"))


def test_the_devices_of_the_topology_pass(two_processes, monkeypatch):
    device = types.SimpleNamespace(device_kind="TPU v5 lite")
    monkeypatch.setattr(jax, "devices", lambda: [device] * 16)
    check_devices(peers(1, 2), slices.find("v5e-16"))
    with pytest.raises(UserError, match=r"has 16 devices .* and --topology=v5e-32 has 32"):
        check_devices(peers(1, 2), slices.find("v5e-32"))
    with pytest.raises(UserError, match="of kind TPU v5 lite, and --topology=v6e-16"):
        check_devices(peers(1, 2), slices.find("v6e-16"))


@pytest.mark.parametrize("received", [[[0], [0]], [[1], [0]], [[0], [7]]])
def test_an_all_gather_that_gives_something_else_is_a_lost_process(
    two_processes, monkeypatch, received
):
    gathered = np.array(received, np.int32)
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda sent: gathered)
    with pytest.raises(LostError, match="an all-gather of the process ids gave"):
        check_devices(peers(1, 2))
