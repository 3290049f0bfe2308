"""What the line of a run's devices says about CPUs."""

import os
from types import SimpleNamespace

import jax
import pytest

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
    assert updates == {name: value for name, value in expected.items() if value}
