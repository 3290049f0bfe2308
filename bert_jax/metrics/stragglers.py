"""Times of every host, and which of them holds the others up.

All hosts finish a step together, so the time of a step tells nothing about one of them. What does
is the time that a host did not wait for its devices: its own time. One that is late with its batch,
or that the operating system keeps from running, has more of it, while the others' devices wait for
its devices. (A device that computes slowly is not found this way: every host waits for it.)
"""

import dataclasses
import json
import statistics
from collections.abc import Sequence
from typing import Any

_OF_A_STEP = 0.2  # a straggler is behind the others by more than this share of a step
_TIMES = 2.0  # and takes more than so many times what they take


@dataclasses.dataclass(frozen=True)
class HostTimes:
    """Of one process, mean seconds of a step over a stretch of steps."""

    host: str
    step: float
    data: float  # waiting for its batch
    device: float  # waiting for its devices

    @property
    def own(self) -> float:
        """What it took itself, waiting for data included."""
        return max(0.0, self.step - self.device)

    def text(self) -> str:
        """For another process: `parse` reads it."""
        return json.dumps([self.host, *(round(s, 6) for s in (self.step, self.data, self.device))])

    @classmethod
    def parse(cls, text: str) -> "HostTimes":
        host, step, data, device = json.loads(text)
        return cls(str(host), float(step), float(data), float(device))


class StepTimer:
    """What a process adds up between two logs."""

    def __init__(self, host: str):
        self._host = host
        self._steps, self._data, self._device = 0, 0.0, 0.0

    def add(self, *, data: float = 0.0, device: float = 0.0) -> None:
        """Takes note of a step: seconds waited for its batch, and for the devices."""
        self._steps += 1
        self._data += data
        self._device += device

    def take(self, step_seconds: float) -> HostTimes:
        """The means of the stretch, in which a step took so many seconds; a new one begins."""
        steps = max(self._steps, 1)
        times = HostTimes(self._host, step_seconds, self._data / steps, self._device / steps)
        self._steps, self._data, self._device = 0, 0.0, 0.0
        return times


def fields(times: Sequence[HostTimes]) -> dict[str, Any]:
    """What a "train" record says of the hosts.

    Args:
        times: of every process, in their order; at least one.

    Returns:
        `hosts/data_wait` and `hosts/own`: seconds of each, in the order of `hosts` in the "start"
        record; the median and the longest wait for data; the host with the most time of its own,
        where there are several; the stragglers, where there are any.
    """
    waits = [one.data for one in times]
    found: dict[str, Any] = {
        "hosts/data_wait": [round(wait, 6) for wait in waits],
        "hosts/own": [round(one.own, 6) for one in times],
        "hosts/data_wait_max": max(waits),
        "hosts/data_wait_median": statistics.median(waits),
    }
    if len(times) > 1:
        found["hosts/slowest"] = max(times, key=lambda one: one.own).host
    if late := stragglers(times):
        found["hosts/stragglers"] = late
    return found


def stragglers(times: Sequence[HostTimes]) -> list[str]:
    """A line for every host that holds the others up; empty where none does.

    A host is compared with the median of the others, so that of two hosts one can be late, too. It
    is a straggler if it is behind by more than a fifth of a step, which is worth a look, and takes
    more than twice as long, which is no noise: where all hosts wait for data, none is late.
    """
    lines = []
    for i, one in enumerate(times):
        others = [*times[:i], *times[i + 1 :]]
        for name, mine, theirs in (
            ("waits for data", one.data, [other.data for other in others]),
            ("is busy itself", one.own, [other.own for other in others]),
        ):
            usual = statistics.median(theirs) if theirs else mine
            if mine - usual > _OF_A_STEP * one.step and mine > _TIMES * usual:
                lines.append(
                    f"{one.host} holds the others up: of {one.step:.3g} s a step it {name} for "
                    f"{mine:.3g} s (the others: {usual:.3g} s)"
                )
                break
    return lines
