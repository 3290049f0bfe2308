"""Simulates a step in schedule order, with collectives that overlap computation.

The text of a scheduled program lists instructions in the order in which the device issues them. A
started collective waits until its network is free and takes its roofline time; the instruction that
uses its result waits until it is done. Loop iterations do not overlap. Copies between HBM and
on-chip memory are assumed to finish in time, because the compiler's cost model schedules them.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from bert_jax.aot.cost.collectives import Collective, Network
from bert_jax.aot.hlo.loops import Executions, Place


def seconds(
    runs: Executions,
    busy: Mapping[tuple[str, str], float],
    collectives: Sequence[Collective],
) -> float:
    """Returns the seconds of one step of a device.

    Args:
        busy: seconds of one execution by (computation, instruction); missing ones take 0.
    """
    inside: dict[tuple[int, str], list[Place]] = {}
    for place in runs.places:
        if place.caller is not None:
            inside.setdefault((id(place.outer), place.caller.name), []).append(place)
    started: dict[tuple[str, str], list[Collective]] = {}
    for one in collectives:
        started.setdefault((one.computation, one.start), []).append(one)
    return _of_place(runs.places[0], inside, busy, started)


@dataclasses.dataclass
class _Clock:
    """now: time of the device. free: time when each network becomes idle."""

    now: float
    free: dict[Network, float]

    def issue(self, one: Collective) -> float:
        """Issues a collective now; returns when it is done."""
        begins = max(self.now, self.free.get(one.network, 0.0))
        self.free[one.network] = begins + (one.seconds or 0.0)
        return self.free[one.network]


def _of_place(
    place: Place,
    inside: Mapping[tuple[int, str], Sequence[Place]],
    busy: Mapping[tuple[str, str], float],
    started: Mapping[tuple[str, str], Sequence[Collective]],
) -> float:
    """Returns the seconds of one execution of a place's computation."""
    name, clock = place.computation.name, _Clock(0.0, {})
    awaited: dict[str, float] = {}
    for one in place.computation.instructions:
        clock.now = max(clock.now, awaited.pop(one.name, 0.0))
        for collective in started.get((name, one.name), ()):
            over = clock.issue(collective)
            if collective.done is None:
                clock.now = over
            else:
                awaited[collective.done] = max(over, awaited.get(collective.done, 0.0))
        clock.now += busy.get((name, one.name), 0.0)
        for inner in inside.get((id(place), one.name), ()):
            runs = inner.times // place.times if place.times else 0
            clock.now += runs * _of_place(inner, inside, busy, started)
    return max((clock.now, *awaited.values()))
