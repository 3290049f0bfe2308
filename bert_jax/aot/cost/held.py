"""Arrays that a compiled program holds at the peak of its schedule, by source line.

The scheduled text lists instructions in the order in which they run, so an array lives from its
instruction to its last reader. Arguments, and results that take an argument's place, are not
counted. A result takes the place of an operand that dies there if each element depends on the same
element of the operand, as in `HloDataflowAnalysis::CanShareOperandBufferWithUser` of XLA. Further
rules of the compiler are not followed: the sum is near its own figure for temporaries, not equal.
"""

import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping

from bert_jax.aot.hlo import sources
from bert_jax.aot.hlo.parser import Computation, Instruction, Module
from bert_jax.aot.hlo.sources import Source

_VIEWS = {"bitcast", "opt-barrier", "domain", "while", "copy-done", "call"}
# The results of these are of the operand's size, with elements in other places.
_MOVES = {
    "transpose", "reverse", "copy", "gather", "sort", "dot", "convolution", "reduce-window",
    "custom-call", "fusion", "all-to-all", "collective-permute", "fft",
}  # fmt: skip
_ALIASED = re.compile(r"\{(\d+)\}: \(\d+")

Elements = tuple[frozenset[str], ...]  # names of the arrays behind each element of a value


@dataclasses.dataclass(frozen=True)
class LineArrays:
    """Arrays of a source line at the peak: their number and bytes."""

    source: Source
    arrays: int
    bytes: int


def at_peak(module: Module, text: str) -> tuple[LineArrays, ...]:
    """Returns what one device holds at the peak, most bytes first.

    text: of the module, whose first line says which results take the place of arguments.
    """
    header = text[: text.find("\n\n")]
    aliased = {int(index) for index in _ALIASED.findall(header)}
    live = _peak(module, module.entry, aliased)
    number: collections.Counter[Source] = collections.Counter()
    size: collections.Counter[Source] = collections.Counter()
    for computation, instruction, amount in live:
        source = sources.source(module, computation, instruction)
        number[source] += 1
        size[source] += amount
    return tuple(LineArrays(source, number[source], total) for source, total in size.most_common())


_Live = list[tuple[Computation, Instruction, int]]


def _peak(module: Module, computation: Computation, aliased: set[int]) -> _Live:
    """Returns the arrays that live at the computation's peak, those of a loop there included."""
    behind, sizes = _arrays(computation)
    root = behind[computation.root.name]
    for index, names in enumerate(root):
        if index in aliased or computation is not module.entry:
            sizes.update(dict.fromkeys(names, 0))
    last = _last_uses(computation, behind)
    now, best, at = 0, -1, 0
    inner: dict[int, _Live] = {}
    for i, instruction in enumerate(computation.instructions):
        taken = _taken(module, computation, instruction, behind, last.get(i, set()))
        last[i - 1] |= taken  # before the result is made
        last[i] -= taken
        now -= sum(sizes[name] for name in taken)
        now += sum(amount for name, amount in _owned(instruction, sizes))
        if instruction.opcode == "while":
            body = module.computations[instruction.called["body"][0]]
            inner[i] = _peak(module, body, set())
        total = now + sum(amount for *_, amount in inner.get(i, ()))
        best, at = (total, i) if total > best else (best, at)
        now -= sum(sizes[name] for name in last.get(i, ()))
    held = [
        (computation, computation.by_name[name.partition("#")[0]], amount)
        for name, amount in _living(computation, sizes, last, at)
    ]
    return held + inner.get(at, [])


def _taken(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    behind: Mapping[str, Elements],
    dying: set[str],
) -> set[str]:
    """Returns the arrays, of those that die here, whose places the results take."""
    taken: set[str] = set()
    operands = computation.operands(instruction)
    for result in range(len(instruction.shapes)) if dying else ():
        for index in _elementwise(module, instruction, operands, result):
            (names,) = behind[operands[index].name] or (frozenset(),)
            if len(names) == 1 and names <= dying - taken:
                taken |= names
                break
    return taken


def _elementwise(
    module: Module, instruction: Instruction, operands: tuple[Instruction, ...], result: int
) -> list[int]:
    """Returns the operands that a result depends on element by element."""
    size, width = instruction.shapes[result].size, instruction.shapes[result].bytes
    alike = [i for i, op in enumerate(operands) if op.bytes == width and len(op.shapes) == 1]
    if instruction.opcode != "fusion" or not alike:
        return [] if instruction.opcode in _MOVES else alike
    inside = module.computations[instruction.called["calls"][0]]
    root = inside.root
    queue = [inside.operands(root)[result] if root.opcode == "tuple" else root]
    reached: set[str] = set()
    parameters: set[int] = set()
    while queue:
        value = queue.pop()
        if value.name in reached or sum(shape.size for shape in value.shapes) != size:
            continue
        reached.add(value.name)
        if value.opcode == "parameter":
            parameters.add(value.index)
        elif value.opcode not in _MOVES:
            queue += inside.operands(value)
    return [i for i in alike if i in parameters]


def _living(
    computation: Computation, sizes: Mapping[str, int], last: Mapping[int, set[str]], at: int
) -> Iterator[tuple[str, int]]:
    dead = {name for i in range(at) for name in last.get(i, ())}
    for instruction in computation.instructions[: at + 1]:
        yield from (
            (name, amount)
            for name, amount in _owned(instruction, sizes)
            if amount and name not in dead
        )


def _owned(instruction: Instruction, sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yields the arrays that an instruction makes."""
    i = 0
    while (name := f"{instruction.name}#{i}") in sizes:
        yield name, sizes[name]
        i += 1


def _arrays(computation: Computation) -> tuple[dict[str, Elements], dict[str, int]]:
    """Returns the arrays behind every value, and their bytes."""
    behind: dict[str, Elements] = {}
    sizes: dict[str, int] = {}
    for instruction in computation.instructions:
        operands = [behind[op.name] for op in computation.operands(instruction)]
        behind[instruction.name] = _behind(instruction, operands, sizes)
    return behind, sizes


def _behind(instruction: Instruction, operands: list[Elements], sizes: dict[str, int]) -> Elements:
    opcode = instruction.opcode
    if opcode in ("parameter", "constant"):
        return tuple(frozenset[str]() for _ in instruction.shapes) or (frozenset(),)
    if opcode == "tuple":
        return tuple(frozenset().union(*elements) for elements in operands)
    if opcode == "get-tuple-element":
        (elements,) = operands
        # An element that is a tuple itself is not followed.
        return (elements[min(instruction.index, len(elements) - 1)],)
    if (opcode in _VIEWS or opcode.endswith("-done")) and operands:
        return operands[0]
    made = instruction.shapes
    if opcode.endswith("-start") and instruction.result.startswith("(("):  # (operands, results)
        made = made[len(made) // 2 :]
    for i, shape in enumerate(made):
        sizes[f"{instruction.name}#{i}"] = shape.bytes
    return tuple(frozenset((f"{instruction.name}#{i}",)) for i in range(len(made)))


def _last_uses(computation: Computation, behind: Mapping[str, Elements]) -> dict[int, set[str]]:
    """Returns the arrays that are read last by each instruction, by its position."""
    uses: dict[str, int] = {}
    for i, instruction in enumerate(computation.instructions):
        values = [instruction, *computation.operands(instruction)]
        for name in (name for v in values for names in behind[v.name] for name in names):
            uses[name] = i
    for names in behind[computation.root.name]:
        for name in names:
            uses.pop(name, None)  # a result lives to the end
    last: dict[int, set[str]] = collections.defaultdict(set)
    for name, i in uses.items():
        last[i].add(name)
    return last
