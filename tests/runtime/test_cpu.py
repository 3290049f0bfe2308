"""What the line of a run's devices says about CPUs, and the memory that a process keeps."""

import os
import statistics
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from bert_jax.errors import UserError
from bert_jax.runtime import cpu

MORE = "; --cpu_devices=2 simulates two on this machine's 4 cores"


@pytest.mark.parametrize(
    ("platforms", "given", "cores", "said"),
    [
        (["cpu"], -1, 4, MORE),
        (["cpu"], 1, 4, ""),  # the user has chosen one
        (["cpu"], -1, 1, ""),
        (["cpu", "cpu"], -1, 4, ""),
        (["gpu"], -1, 4, ""),
    ],
)
def test_one_cpu_device_of_several_cores_can_be_two(
    platforms: list[str], given: int, cores: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hasattr(jax.config, cpu._COUNT)
    config = SimpleNamespace(**{cpu._COUNT: given})
    monkeypatch.setattr(cpu, "jax", SimpleNamespace(config=config))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    devices = [SimpleNamespace(platform=platform) for platform in platforms]
    assert cpu.more_devices(devices) == said


@pytest.mark.parametrize(
    ("count", "beside", "platforms"), [(2, False, "cpu"), (2, True, None), (None, False, None)]
)
def test_simulated_devices_take_the_place_of_accelerators(
    count: int | None, beside: bool, platforms: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but those of `demo`, which uses the accelerators that it finds."""
    updates: dict[str, object] = {}
    config = SimpleNamespace(update=updates.__setitem__)
    monkeypatch.setattr(cpu, "jax", SimpleNamespace(config=config))
    for name in ("PJRT_NPROC", "XLA_FLAGS"):
        monkeypatch.setenv(name, "")  # they are as before after the test
    cpu.use_cpu_devices(count, beside_accelerators=beside)
    assert hasattr(jax.config, "jax_platforms")
    expected = {cpu._COUNT: count, "jax_platforms": platforms}
    dispatch = {} if count else {"jax_cpu_enable_async_dispatch": False}
    assert updates == {name: value for name, value in expected.items() if value} | dispatch


def test_devices_of_a_jax_that_has_started_remain() -> None:
    """As in a notebook, or in a test after others."""
    count = len(jax.devices()) + 1
    before = getattr(jax.config, cpu._COUNT)
    cpu._set_count(count, is_required=False)
    with pytest.raises(UserError, match=f"--cpu_devices={count}: .* start a new process"):
        cpu._set_count(count, is_required=True)
    assert getattr(jax.config, cpu._COUNT) == before


FAULTS = """
import resource
import jax, jax.numpy as jnp, numpy as np
from bert_jax.runtime import cpu
cpu.use_cpu_devices(1)
if {keeps}:
    cpu.keep_memory()
products = jax.jit(lambda x, y: (x @ y) @ y.T)  # 160 MB of temporaries
x, y = jnp.ones((40000, 8)), jnp.ones((8, 1000))
for _ in range(24):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    {work}
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(work: str, *, keeps: bool) -> list[int]:
    """The page faults of each of 24 times that a process of its own does some work."""
    command = [sys.executable, "-c", FAULTS.format(work=work, keeps=keeps)]
    return [int(n) for n in subprocess.check_output(command, timeout=120).split()]


@pytest.mark.slow
@pytest.mark.processes
def test_memory_that_was_freed_is_used_again_without_asking_the_kernel() -> None:
    work = "np.ones(2**25)"
    if faults(work, keeps=False)[2] < 100:
        pytest.skip("the allocator keeps memory already")
    assert max(faults(work, keeps=True)[1:]) < 20


@pytest.mark.processes
def test_temporaries_of_a_program_use_memory_that_was_freed() -> None:
    """The thread that executes a program decides it, see `cpu.keep_memory`.

    Not of the last time alone: a small array may take the beginning of a freed block, so the heap
    grows by up to five blocks (measured) until there are gaps enough.
    """
    work = "products(x, y).block_until_ready()"
    if statistics.median(faults(work, keeps=False)) < 1000:
        pytest.skip("the allocator keeps memory already")
    assert statistics.median(faults(work, keeps=True)) < 1000
