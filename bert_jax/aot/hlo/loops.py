"""Counts the executions of each instruction in one run of a compiled program.

The entry runs once, a loop's body once per trip and its condition once more; of a conditional, the
branch with the most estimated cycles. Instructions inside a fusion are part of the fusion and are
not counted on their own.

libtpu does not record trip counts, so they are inferred as XLA does (`while_loop_analysis`,
openxla/xla): from a counter that starts at a constant, changes by a constant and is compared with a
constant.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping

from bert_jax.aot.hlo.parser import Computation, Instruction, Module

# The called computation runs once, asynchronously; -update and -done may name it again.
ASYNCHRONOUS = ("async-start", "call-start")
_PASS_THROUGH = {"copy", "bitcast", "reshape", "convert", "copy-done", "opt-barrier"}


@dataclasses.dataclass(frozen=True)
class Place:
    """A computation with its call site; one computation may be called from several places.

    times: number of executions per run of the program.
    caller, outer: the calling instruction and its place; None for the entry.
    """

    computation: Computation
    times: int
    caller: Instruction | None = None
    outer: "Place | None" = None


@dataclasses.dataclass(frozen=True)
class Executions:
    """All places that execute.

    trips: trip count of each loop, by name; None if unknown (the loop is counted once).
    """

    places: tuple[Place, ...]
    trips: Mapping[str, int | None]

    def counts(
        self, wanted: Callable[[Instruction], bool]
    ) -> Iterator[tuple[Computation, Instruction, int]]:
        """Yields every instruction that `wanted` selects, with its executions per run."""
        times: collections.Counter[str] = collections.Counter()
        for place in self.places:
            times[place.computation.name] += place.times
        computations = {place.computation.name: place.computation for place in self.places}
        for name, computation in computations.items():
            for instruction in filter(wanted, computation.instructions):
                yield computation, instruction, times[name]


def executions(module: Module) -> Executions:
    """Returns every place reachable from the entry."""
    trips: dict[str, int | None] = {}
    return Executions(tuple(_below(module, Place(module.entry, 1), trips)), trips)


def cycles(module: Module, place: Place) -> int:
    """Returns the estimated cycles of a place and all it calls, multiplied by their executions."""
    return sum(
        inner.times * (instruction.cycles or 0)
        for inner in _below(module, place, {})
        for instruction in inner.computation.instructions
    )


def _below(module: Module, place: Place, trips: dict[str, int | None]) -> Iterator[Place]:
    """Yields the place and, recursively, the places that its instructions call."""
    yield place
    for op in place.computation.instructions:
        if op.opcode == "while":
            trips[op.name] = trip_count(module, op, place)
            count = trips[op.name]
            count = 1 if count is None else count
            runs = [(op.called["body"][0], count), (op.called["condition"][0], count + 1)]
        elif op.opcode == "conditional" or op.opcode == "call" or op.opcode in ASYNCHRONOUS:
            runs = [(name, 1) for names in op.called.values() for name in names]
        else:
            continue
        inner = [Place(module.computations[name], n * place.times, op, place) for name, n in runs]
        if op.opcode == "conditional":
            inner = [max(inner, key=lambda branch: cycles(module, branch))]
        for called in inner:
            yield from _below(module, called, trips)


def trip_count(module: Module, loop: Instruction, place: Place) -> int | None:
    """Returns the trip count of a `while` in this place, None if it cannot be inferred."""
    if loop.known_trips is not None:
        return loop.known_trips
    condition = module.computations[loop.called["condition"][0]]
    test = condition.root
    direction = test.attribute("direction")
    if test.opcode != "compare" or len(sides := condition.operands(test)) != 2:
        return None
    in_condition = Place(condition, 1, loop, place)
    # The counter is the element of the loop state that changes; the limit may be another element.
    counters = [
        None if _constant(module, side, in_condition) is not None else _element(condition, side)
        for side in sides
    ]
    if (counters[0] is None) == (counters[1] is None):
        return None
    at = 0 if counters[0] is not None else 1
    limit = _constant(module, sides[1 - at], in_condition)
    start = _initial(module, counters[at] or 0, loop, place)
    step = _step(module, counters[at] or 0, loop, place)
    if limit is None or start is None or not step:
        return None
    return _for_trips(start, step, limit, direction if at == 0 else _MIRRORED.get(direction, ""))


_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


def _for_trips(start: int, step: int, limit: int, direction: str) -> int | None:
    """Returns the trip count of `for (i = start; i <direction> limit; i += step)`."""
    distance = limit - start
    if direction in ("LE", "GE"):
        distance += 1 if direction == "LE" else -1
    if direction == "NE":
        return distance // step if distance % step == 0 and distance // step >= 0 else None
    if direction not in ("LT", "LE", "GT", "GE") or (step > 0) != (direction in ("LT", "LE")):
        return None
    return max(0, -(-distance // step))


def _element(computation: Computation, value: Instruction) -> int | None:
    """Returns the index of a value in the loop state, None if it is not an element of it."""
    value = _origin(computation, value)
    if value.opcode != "get-tuple-element":
        return None
    (source,) = computation.operands(value)
    return value.index if source.opcode == "parameter" else None


def _origin(computation: Computation, value: Instruction) -> Instruction:
    """Returns the value behind copies, views and conversions."""
    while value.opcode in _PASS_THROUGH or value.opcode == "copy-start":
        value = computation.operands(value)[0]
    return value


def _constant(module: Module, value: Instruction, place: Place) -> int | None:
    """Returns the integer that a value always has in this place, None if it varies."""
    value = _origin(place.computation, value)
    if value.opcode == "constant":
        return int(value.arguments) if value.arguments.lstrip("-").isdigit() else None
    if value.opcode != "get-tuple-element":
        return None
    (source,) = place.computation.operands(value)
    if source.opcode == "tuple":
        inner = place.computation.operands(source)[value.index]
        return _constant(module, inner, place)
    loop, where = (place.caller, place.outer) if source.opcode == "parameter" else (source, place)
    if loop is None or where is None or loop.opcode != "while":
        return None
    body = module.computations[loop.called["body"][0]]
    after = _after(body, value.index)
    if after is None or _element(body, after) != value.index:
        return None  # the loop changes it
    return _initial(module, value.index, loop, where)


def _initial(module: Module, index: int, loop: Instruction, place: Place) -> int | None:
    """Returns the constant initial value of an element of the loop state, None if unknown."""
    (state,) = place.computation.operands(loop)
    state = _origin(place.computation, state)
    if state.opcode != "tuple":
        return None
    return _constant(module, place.computation.operands(state)[index], place)


def _after(body: Computation, index: int) -> Instruction | None:
    """Returns the instruction of an element of the next state; None if it is not known."""
    root = _origin(body, body.root)
    return body.operands(root)[index] if root.opcode == "tuple" else None


def _step(module: Module, index: int, loop: Instruction, place: Place) -> int | None:
    """Returns the constant that one iteration adds to an element of the state."""
    body = module.computations[loop.called["body"][0]]
    if (after := _after(body, index)) is None:
        return None
    after, in_body = _origin(body, after), Place(body, 1, loop, place)
    sides = [(value, in_body) for value in body.operands(after)]
    if fused := module.fused(after):  # the constant is inside the fusion or an operand of it
        after, operands = fused.root, sides
        values = [_origin(fused, value) for value in fused.operands(after)]
        sides = [
            operands[value.index] if value.opcode == "parameter" else (value, Place(fused, 1))
            for value in values
        ]
    old = [where is in_body and _element(body, value) == index for value, where in sides]
    if after.opcode not in ("add", "subtract") or not any(old):
        return None
    step = _constant(module, *sides[1 - old.index(True)])
    if step is None or after.opcode == "add":
        return step
    return -step if old[0] else None
