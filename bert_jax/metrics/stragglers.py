"""Times of every host, and which hosts are stragglers.

All hosts finish a step together, so step time does not identify a slow host. Host time, the time a
host did not wait for its devices, does: a host whose batch is late, or that the operating system
does not schedule, has more of it while the devices of the others wait for its devices. (A slow
device is not detected this way: every host waits for it.)
"""

import dataclasses
import json
import statistics
from collections.abc import Sequence
from typing import Any

_MIN_STEP_SHARE = 0.2  # a straggler is slower than the others by more than this share of a step
_MIN_RATIO = 2.0  # and takes more than this multiple of their time


@dataclasses.dataclass(frozen=True)
class HostTimes:
    """Mean seconds per step of one process over a logging interval."""

    host: str
    step: float
    data: float  # waiting for its batch
    device: float  # waiting for its devices

    @property
    def own(self) -> float:
        """Host time: not waiting for the devices, but waiting for data included."""
        return max(0.0, self.step - self.device)

    def text(self) -> str:
        """Serializes the times for another process; `parse` reads them."""
        return json.dumps([self.host, *(round(s, 6) for s in (self.step, self.data, self.device))])

    @classmethod
    def parse(cls, text: str) -> "HostTimes":
        host, step, data, device = json.loads(text)
        return cls(str(host), float(step), float(data), float(device))


class StepTimer:
    """Accumulates the waiting times of a process over a logging interval."""

    def __init__(self, host: str):
        self._host = host
        self._steps, self._data, self._device = 0, 0.0, 0.0

    def add(self, *, data: float = 0.0, device: float = 0.0) -> None:
        """Adds a step: seconds waited for its batch, and for the devices."""
        self._steps += 1
        self._data += data
        self._device += device

    def take(self, step_seconds: float) -> HostTimes:
        """Returns the means of the interval, given its mean step time, and starts a new one."""
        steps = max(self._steps, 1)
        times = HostTimes(self._host, step_seconds, self._data / steps, self._device / steps)
        self._steps, self._data, self._device = 0, 0.0, 0.0
        return times


def fields(times: Sequence[HostTimes]) -> dict[str, Any]:
    """The fields of a "train" record about the hosts, from the times of every process, in order.

    `hosts/data_wait` and `hosts/own`: seconds of each, in the order of `hosts` in the "start"
    record; the median and the longest wait for data; the host with the most host time, if there are
    several hosts; the stragglers, if any.
    """
    waits = [host.data for host in times]
    values: dict[str, Any] = {
        "hosts/data_wait": [round(wait, 6) for wait in waits],
        "hosts/own": [round(host.own, 6) for host in times],
        "hosts/data_wait_max": max(waits),
        "hosts/data_wait_median": statistics.median(waits),
    }
    if len(times) > 1:
        values["hosts/slowest"] = max(times, key=lambda host: host.own).host
    if slow := stragglers(times):
        values["hosts/stragglers"] = slow
    return values


def stragglers(times: Sequence[HostTimes]) -> list[str]:
    """One line per straggler; empty if no host slows the others down.

    A host is compared with the median of the others, so that one of two hosts can be a straggler.
    It is one if it is slower by more than a fifth of a step, which matters, and takes more than
    twice as long, which is not noise: if all hosts wait for data, no host is a straggler.
    """
    lines = []
    for i, host in enumerate(times):
        others = [*times[:i], *times[i + 1 :]]
        for activity, own, theirs in (
            ("waits for data", host.data, [other.data for other in others]),
            ("is busy on the host", host.own, [other.own for other in others]),
        ):
            usual = statistics.median(theirs) if theirs else own
            if own - usual > _MIN_STEP_SHARE * host.step and own > _MIN_RATIO * usual:
                lines.append(
                    f"{host.host} is a straggler: of {host.step:.3g} s per step it {activity} for "
                    f"{own:.3g} s (the others: {usual:.3g} s)"
                )
                break
    return lines
