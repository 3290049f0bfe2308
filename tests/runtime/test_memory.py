"""The peak of a process's memory, and of its devices."""

from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from bert_jax.runtime import memory


def test_the_peak_is_that_of_the_process_and_its_fullest_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memory.peak_bytes()["process"] > 50 << 20  # JAX alone takes more
    status = tmp_path / "status"
    status.write_text("VmPeak:\t 9000 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1000 kB\n")
    monkeypatch.setattr(memory, "_STATUS", status)
    assert memory.peak_bytes() == {"process": 2 << 20}
    peaks = (None, {}, {"peak_bytes_in_use": 5}, {"peak_bytes_in_use": 7})
    devices = [SimpleNamespace(memory_stats=lambda peak=peak: peak) for peak in peaks]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert memory.peak_bytes() == {"process": 2 << 20, "device": 7}
    status.unlink()
    assert memory.peak_bytes() == {"device": 7}
