"""Frees a host's TPU from what an earlier process of the job left behind.

A trainer that was killed may leave a child that holds the device, or libtpu's lock file; both make
the next one fail with "device busy".
"""

import contextlib
import os
import re
import signal
from pathlib import Path

from bert_jax.storage.host_name import HOST_VARIABLE

_DEVICES = re.compile(r"/dev/(accel\d+|vfio/\d+)$")
_LOCK = Path("/tmp/libtpu_lockfile")


def free_devices(*, proc: Path = Path("/proc"), lock: Path = _LOCK) -> list[str]:
    """Kills processes of this job that still hold a TPU, and removes libtpu's lock without owner.

    Returns the processes of others that hold one, for a message; then the lock stays.
    """
    others = []
    for process in proc.glob("[0-9]*"):
        device = _held(process)
        if device is None:
            continue
        if _is_ours(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
        else:
            others.append(f"{device} is held by {_name(process)} (process {process.name})")
    if not others:
        with contextlib.suppress(OSError):
            lock.unlink()
    return others


def _held(process: Path) -> str | None:
    """Returns a TPU that a process has open, None without one."""
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(descriptor)
                if _DEVICES.match(target):
                    return target
    return None


def _is_ours(process: Path) -> bool:
    """Returns whether a process has the variable that the agent gives to those that it starts."""
    with contextlib.suppress(OSError):
        return f"{HOST_VARIABLE}=".encode() in (process / "environ").read_bytes()
    return False


def _name(process: Path) -> str:
    with contextlib.suppress(OSError):
        return (process / "comm").read_text().strip()
    return "a process"
