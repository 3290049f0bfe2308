"""The most memory that this process has used."""

import re
from pathlib import Path

import jax

_STATUS = Path("/proc/self/status")


def peak_bytes() -> dict[str, int]:
    """Returns the peak of the process, and of its fullest device if the devices count it; nothing
    where the system does not tell.

    Linux: that of the process itself; `ru_maxrss` would begin at the peak of its parent.
    """
    counted = [device.memory_stats() or {} for device in jax.local_devices()]
    device = max(each.get("peak_bytes_in_use", 0) for each in counted)
    try:
        match = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())
    except OSError:
        match = None
    process = int(match[1]) * 1024 if match else 0
    return {name: peak for name, peak in (("process", process), ("device", device)) if peak}
