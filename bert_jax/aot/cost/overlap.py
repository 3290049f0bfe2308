"""How long a step takes when collectives run beside the computation, in the order of the schedule.

The text of a scheduled program has its instructions in the order in which the device begins them.
A collective that is started waits for its network to be free, takes the roofline's time, and must
be over where its result is asked for; whoever asks earlier waits. A loop's turns do not overlap.
Copies between HBM and the chip's memory are taken to be in time: the compiler's own cost model
plans them.
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
    """Seconds of one step of a device.

    Args:
        busy: of one run of an instruction, by (computation, name); what is not there takes none.
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
    """now: of the device. free: when each network has done what was asked of it."""

    now: float
    free: dict[Network, float]

    def ask(self, one: Collective) -> float:
        """When a collective that begins now is over."""
        begins = max(self.now, self.free.get(one.network, 0.0))
        self.free[one.network] = begins + (one.seconds or 0.0)
        return self.free[one.network]


def _of_place(
    place: Place,
    inside: Mapping[tuple[int, str], Sequence[Place]],
    busy: Mapping[tuple[str, str], float],
    started: Mapping[tuple[str, str], Sequence[Collective]],
) -> float:
    """Of one run of its computation."""
    name, clock = place.computation.name, _Clock(0.0, {})
    awaited: dict[str, float] = {}
    for one in place.computation.instructions:
        clock.now = max(clock.now, awaited.pop(one.name, 0.0))
        for collective in started.get((name, one.name), ()):
            over = clock.ask(collective)
            if collective.done is None:
                clock.now = over
            else:
                awaited[collective.done] = max(over, awaited.get(collective.done, 0.0))
        clock.now += busy.get((name, one.name), 0.0)
        for inner in inside.get((id(place), one.name), ()):
            runs = inner.times // place.times if place.times else 0
            clock.now += runs * _of_place(inner, inside, busy, started)
    return max((clock.now, *awaited.values()))
