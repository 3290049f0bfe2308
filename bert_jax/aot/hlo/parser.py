"""Parses optimized HLO text (`jax.stages.Compiled.as_text()`) into computations and sources.

Plain Python, without JAX or a device. A large unrolled program has some 27,000 instructions in its
entry and several times as many inside fusions (10-50 MB), so a line is only split into name, type,
opcode, arguments and the rest; attributes of an instruction are parsed lazily.

The grammar is that of xla/hlo/parser/hlo_parser.cc and of `HloModule::ToString` (openxla/xla).
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

from bert_jax.aot.hlo import stack_frames
from bert_jax.aot.hlo.stack_frames import Frame
from bert_jax.errors import UserError

# Bits per element. Other types (token, opaque) take no memory.
_BITS = {
    "pred": 8,
    **{f"{kind}{bits}": bits for kind in "su" for bits in (1, 2, 4, 8, 16, 32, 64)},
    **{"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128},
}
_BITS_IN_NAME = re.compile(r"f([48])e\d")  # f8e4m3fn, f4e2m1fn, …

_LINE = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][a-z0-9\-]*)\(([^)]*)\)(.*)")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*->.*\{\s*$")
_END = re.compile(r"\}\s*$|\}, execution_thread=")
_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{([^}]*)\})?")
_MEMORY = re.compile(r"S\((\d+)\)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NO_ESTIMATE = 2**63 - 1  # the compiler's value for work of another core
_OP_NAME = re.compile(r'metadata=\{[^}]*?op_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_OLD_SOURCE = re.compile(r'source_file="([^"]*)"(?: source_line=(\d+))?')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLS = re.compile(
    r"\b(calls|body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)"
)
_CALL_LISTS = re.compile(r"\b(branch_computations|called_computations)=\{([^}]*)\}")
# Lists and iotas end at a comma; a mesh with named axes ends with the axes of the collective.
_GROUPS = re.compile(
    r"(?:replica_groups|source_target_pairs)="
    r"(@?mesh\[[^\]]*\][^{]*\{[^}]*\}|\{\{.*?\}\}|\{\}|\[[^\]]*\](?:<=\[[^\]]*\])?(?:T\([^)]*\))?)"
)


@dataclasses.dataclass(frozen=True)
class Shape:
    """One array of a result; a tuple result has several.

    dims: sizes as printed. memory: memory space, 0 for HBM, otherwise on-chip (1 is VMEM on TPU).
    """

    dtype: str
    dims: tuple[int, ...]
    memory: int = 0

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes of the elements, without the padding of a tiled layout."""
        named = _BITS_IN_NAME.match(self.dtype)
        bits = int(named[1]) if named else _BITS.get(self.dtype, 0)
        return self.size * bits // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


def shapes(text: str) -> tuple[Shape, ...]:
    """Returns the arrays of a type, `bf16[8,128]{1,0:T(8,128)(2,1)S(1)}`, tuples flattened."""
    return tuple(
        Shape(
            dtype,
            # A bounded dynamic dimension is printed as "<=8" and allocated at its bound.
            tuple(int(size.lstrip("<=")) for size in dims.split(",") if size),
            int(memory[1]) if (memory := _MEMORY.search(layout)) else 0,
        )
        for dtype, dims, layout in _ARRAY.findall(text)
    )


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    result: its type, as text. arguments: the text in the parentheses. rest: the text after them.
    """

    name: str
    result: str
    opcode: str
    arguments: str
    rest: str
    root: bool = False

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return shapes(self.result)

    @property
    def bytes(self) -> int:
        """Bytes of all arrays of the result."""
        return sum(shape.bytes for shape in self.shapes)

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the operand instructions."""
        return tuple(re.findall(r"%([\w.\-]+)", self.arguments))

    @property
    def cycles(self) -> int | None:
        """The compiler's cycle estimate for one execution; None if it has none."""
        match = _CYCLES.search(self.rest)
        return int(match[1]) if match and int(match[1]) < _NO_ESTIMATE else None

    @property
    def op_name(self) -> str:
        """The path of JAX transformations and primitives that it comes from, "" if unknown."""
        match = _OP_NAME.search(self.rest)
        return match[1] if match else ""

    @property
    def index(self) -> int:
        """Index of a `get-tuple-element` or `parameter`."""
        if self.opcode == "parameter":
            return int(self.arguments)
        match = re.search(r"\bindex=(\d+)", self.rest)
        return int(match[1]) if match else 0

    @property
    def target(self) -> str:
        """The target of a custom call, "" otherwise."""
        return self.attribute("custom_call_target").strip('"')

    @property
    def called(self) -> Mapping[str, tuple[str, ...]]:
        """Names of called computations by attribute: calls, body, condition, …"""
        called = {key: (name,) for key, name in _CALLS.findall(self.rest)}
        for key, names in _CALL_LISTS.findall(self.rest):
            called[key] = tuple(name.strip().lstrip("%") for name in names.split(","))
        return called

    @property
    def groups(self) -> str:
        """The text of a collective's replica groups or source-target pairs."""
        match = _GROUPS.search(self.rest)
        return match[1] if match else ""

    @property
    def known_trips(self) -> int | None:
        """The trip count of a `while`, if the compiler recorded it (libtpu 0.0.42 does not)."""
        match = _TRIPS.search(self.rest)
        return int(match[1]) if match else None

    def attribute(self, name: str) -> str:
        """Returns the text of `name=…` up to a comma outside brackets; "" if it is missing."""
        start = re.search(rf"(?:^|[ ,]){re.escape(name)}=", self.rest)
        if not start:
            return ""
        depth, begin = 0, start.end()
        for at in range(begin, len(self.rest)):
            character = self.rest[at]
            depth += (character in "{[(") - (character in "}])")
            if depth == 0 and character == ",":
                return self.rest[begin:at]
        return self.rest[begin:].strip()


@dataclasses.dataclass(frozen=True)
class Computation:
    name: str
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        return {instruction.name: instruction for instruction in self.instructions}

    @functools.cached_property
    def root(self) -> Instruction:
        return next((i for i in self.instructions if i.root), self.instructions[-1])

    def operands(self, instruction: Instruction) -> tuple[Instruction, ...]:
        return tuple(self.by_name[name] for name in instruction.operands)


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program.

    frames: by id, each with the id of its caller's frame (0: none).
    """

    computations: Mapping[str, Computation]
    entry: Computation
    frames: Mapping[int, tuple[Frame, int]]

    def stack(self, instruction: Instruction) -> tuple[Frame, ...]:
        """Returns its source frames, innermost first; () if unknown.

        A fusion without a source has the source of the root of its computation.
        """
        if match := _FRAME.search(instruction.rest):
            return tuple(self._callers(int(match[1])))
        if old := _OLD_SOURCE.search(instruction.rest):
            return (Frame(old[1], int(old[2] or 0)),)
        fused = self.fused(instruction)
        return self.stack(fused.root) if fused else ()

    def op_name(self, instruction: Instruction) -> str:
        """Returns `Instruction.op_name`; a fusion without one has its root's."""
        fused = None if instruction.op_name else self.fused(instruction)
        return self.op_name(fused.root) if fused else instruction.op_name

    def fused(self, instruction: Instruction) -> Computation | None:
        """Returns the computation of a fusion, None for other instructions."""
        if instruction.opcode != "fusion":
            return None
        return self.computations.get(instruction.called.get("calls", ("",))[0])

    def _callers(self, number: int) -> Iterator[Frame]:
        seen = set()
        while number in self.frames and number not in seen:
            seen.add(number)
            frame, number = self.frames[number]
            yield frame


def parse(text: str) -> Module:
    """Parses the text of a module.

    Raises:
        UserError: it has no entry computation.
    """
    computations: dict[str, Computation] = {}
    entry = name = None
    lines: list[Instruction] = []
    for line in text.splitlines():
        if name is None:
            if line.endswith("{") and (start := _COMPUTATION.match(line)):
                name, lines = start[2], []
                entry = name if start[1] else entry
        elif _END.match(line):
            computations[name] = Computation(name, tuple(lines))
            name = None
        elif cut := _LINE.match(line):
            root, own, result, opcode, arguments, rest = cut.groups()
            lines.append(Instruction(own, result, opcode, arguments, rest, root=bool(root)))
        elif lines and not line[:1].isspace():  # the metadata of a Pallas kernel has several lines
            lines[-1] = dataclasses.replace(lines[-1], rest=lines[-1].rest + line)
    if entry not in computations:
        raise UserError("not the HLO text of a compiled program: no ENTRY computation")
    return Module(computations, computations[entry], stack_frames.read_frames(text))
