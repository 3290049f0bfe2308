"""Simulates a step in schedule order, with collectives that overlap computation.

The text of a scheduled program lists instructions in the order in which the device issues them. A
started collective waits until its network is free and takes its roofline time; the instruction that
uses its result waits until it is done. Loop iterations do not overlap. Copies between HBM and
on-chip memory are assumed to finish in time, because the compiler's cost model schedules them.
"""

from collections.abc import Mapping, Sequence

from bert_jax.aot.cost.collectives import Collective, Network
from bert_jax.aot.hlo.loops import Executions, Place


def seconds(
    runs: Executions, busy: Mapping[tuple[str, str], float], collectives: Sequence[Collective]
) -> float:
    """Returns the seconds of one step of a device.

    Args:
        busy: seconds of one execution by (computation, instruction); missing ones take 0.
    """
    callees: dict[tuple[int, str], list[Place]] = {}
    for place in runs.places:
        if place.caller is not None:
            callees.setdefault((id(place.outer), place.caller.name), []).append(place)
    started: dict[tuple[str, str], list[Collective]] = {}
    for collective in collectives:
        started.setdefault((collective.computation, collective.start), []).append(collective)
    return _of_place(runs.places[0], callees, busy, started)


def _of_place(
    place: Place,
    callees: Mapping[tuple[int, str], Sequence[Place]],
    busy: Mapping[tuple[str, str], float],
    started: Mapping[tuple[str, str], Sequence[Collective]],
) -> float:
    """Returns the seconds of one execution of a place's computation."""
    name, now = place.computation.name, 0.0
    free: dict[Network, float] = {}  # time when each network becomes idle
    awaited: dict[str, float] = {}
    for instruction in place.computation.instructions:
        now = max(now, awaited.pop(instruction.name, 0.0))
        for collective in started.get((name, instruction.name), ()):
            begins = max(now, free.get(collective.network, 0.0))
            end = free[collective.network] = begins + (collective.seconds or 0.0)
            if collective.done is None:
                now = end
            else:
                awaited[collective.done] = max(end, awaited.get(collective.done, 0.0))
        now += busy.get((name, instruction.name), 0.0)
        for inner in callees.get((id(place), instruction.name), ()):
            runs = inner.times // place.times if place.times else 0
            now += runs * _of_place(inner, callees, busy, started)
    return max((now, *awaited.values()))
