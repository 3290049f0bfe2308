"""Roofline time of operations without a cycle estimate, at the accelerator's peak rates.

These are lower bounds: each byte is moved once, at the full HBM bandwidth, whichever memory it is
in. They are reported separately from the compiler's cycles, which come from a hardware model.
"""

import collections
import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from bert_jax.aot.cost import collectives
from bert_jax.aot.hlo.loops import Executions
from bert_jax.aot.hlo.parser import Computation, Instruction, Module
from bert_jax.hardware.accelerators import Accelerator

# Free: aliases of values, and ends of operations that are counted at their start.
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "domain",
    "add-dependency", "opt-barrier", "partition-id", "replica-id", "while", "conditional", "call",
    "async-start", "call-start", "send-done", "recv", "recv-done",
}  # fmt: skip
_FREE_TARGETS = {
    "AllocateBuffer", "ConcatBitcast", "SliceId",
    "PrepareAsyncCallStart", "PrepareAsyncCallDone", "AssumeGatherIndicesInBound",
    "AsyncCollectiveStart", "AsyncCollectiveDone",  # see collectives.py
}  # fmt: skip
_COPIES = ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start")
_SMALL = 1024  # elements; one register of the vector unit
# Operations that dominate a fusion without a cycle estimate, by precedence.
_DOMINANT = ("sort", "scatter", "gather", "dynamic-update-slice", "dynamic-slice", "convolution")
# They read a part of their first operand.
_PARTS = ("slice", "dynamic-slice", "gather")
_COST = re.compile(r'"cost_estimate":\{([^}]*)\}')
_COUNT = re.compile(r'"(\w+)":"?(\d+)')


@dataclasses.dataclass(frozen=True)
class Bound:
    """An instruction without a cycle estimate. All fields but `runs` are per execution.

    seconds: the longer of memory and compute time at peak. runs: executions per step.
    """

    computation: str
    name: str
    kind: str
    bytes: int
    flops: int
    seconds: float
    runs: int


@dataclasses.dataclass(frozen=True)
class Unestimated:
    """All bounds of a kind: totals of a step."""

    kind: str
    runs: int
    bytes: int
    flops: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Copies:
    """Asynchronous copies between HBM and on-chip memory: totals of a step.

    seconds: at the HBM bandwidth; not part of any total, because the compiler schedules the copies
    to finish before their results are needed.
    """

    runs: int
    bytes: int
    seconds: float


def bounds(
    module: Module,
    runs: Executions,
    accelerator: Accelerator,
    *,
    exclude: Collection[tuple[str, str]] = (),
    small: int = _SMALL,
) -> tuple[Bound, ...]:
    """Returns the bounds of all instructions that take time and have no cycle estimate.

    Args:
        exclude: (computation, name) of fusions that are collectives and are counted there.
        small: results of at most this many elements count alone, without what is read for them.
    """
    return tuple(
        _bound(module, computation, instruction, times, accelerator, small)
        for computation, instruction, times in runs.counts(_unestimated)
        if (computation.name, instruction.name) not in exclude
    )


def by_kind(bounds: Sequence[Bound]) -> tuple[Unestimated, ...]:
    """Returns the totals by kind, slowest first."""
    kinds: Mapping[str, list[Bound]] = collections.defaultdict(list)
    for bound in bounds:
        kinds[bound.kind].append(bound)
    totals = [
        Unestimated(
            kind,
            runs=sum(b.runs for b in group),
            bytes=sum(b.runs * b.bytes for b in group),
            flops=sum(b.runs * b.flops for b in group),
            seconds=sum(b.runs * b.seconds for b in group),
        )
        for kind, group in kinds.items()
    ]
    return tuple(sorted(totals, key=lambda total: -total.seconds))


def copies(runs: Executions, accelerator: Accelerator) -> Copies:
    """Returns the totals of asynchronous copies from and to HBM."""
    count = moved = 0
    for _, instruction, times in runs.counts(lambda i: i.opcode in _COPIES):
        count += times
        # The result is (source, destination, flag); a slice moves the smaller of the two.
        moved += times * min(shape.bytes for shape in instruction.shapes[:2])
    return Copies(count, moved, moved / (accelerator.memory_bandwidth or float("inf")))


def _unestimated(instruction: Instruction) -> bool:
    opcode = instruction.opcode
    return (
        instruction.cycles is None
        and opcode not in _FREE
        and opcode not in _COPIES
        and opcode.removesuffix("-start") not in collectives.KINDS
        and instruction.target not in _FREE_TARGETS
        and not opcode.endswith(("-done", "-update"))
    )


def _bound(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    runs: int,
    accelerator: Accelerator,
    small: int,
) -> Bound:
    kind, moved = _work(module, computation, instruction, small)
    flops = 0
    if cost := _COST.search(instruction.rest):
        estimate = {name: int(count) for name, count in _COUNT.findall(cost[1])}
        flops = estimate.get("flops", 0)
        moved = estimate.get("bytes_accessed", moved) or moved
    bandwidth = accelerator.memory_bandwidth
    seconds = moved / bandwidth if bandwidth else 0.0
    seconds = max(seconds, flops / accelerator.bf16_flops)
    return Bound(computation.name, instruction.name, kind, moved, flops, seconds, runs)


def _work(
    module: Module, computation: Computation, instruction: Instruction, small: int
) -> tuple[str, int]:
    """Returns the kind of an instruction and a lower bound of the bytes that it accesses."""
    operands = computation.operands(instruction)
    if instruction.opcode == "custom-call":
        return instruction.target, instruction.bytes + sum(operand.bytes for operand in operands)
    if all(shape.size <= small for shape in instruction.shapes):
        return "scalars", instruction.bytes
    if instruction.opcode == "rng-bit-generator":
        return instruction.opcode, instruction.bytes
    fused = module.fused(instruction)
    if fused is None:
        return _touched(computation, instruction)
    by_opcode = {inner.opcode: inner for inner in fused.instructions}
    opcodes = set(_opcodes(module, instruction))
    dominant = next((opcode for opcode in _DOMINANT if opcode in opcodes), "fusion")
    if dominant in by_opcode:
        return _touched(fused, by_opcode[dominant])
    return dominant, instruction.bytes + _read(fused)


def _read(fused: Computation) -> int:
    """Returns the bytes that a fusion reads: of an array that it only slices, its slices."""
    users: Mapping[str, list[Instruction]] = collections.defaultdict(list)
    for instruction in fused.instructions:
        for name in instruction.operands:
            users[name].append(instruction)

    def read(value: Instruction) -> int:
        parts = 0
        for user in users[value.name]:
            if user.opcode == "bitcast" and not user.root:
                parts += read(user)
            elif user.opcode in _PARTS and user.operands[0] == value.name:
                parts += user.bytes
            else:
                return value.bytes
        return min(parts, value.bytes)

    return sum(read(value) for value in fused.instructions if value.opcode == "parameter")


def _opcodes(module: Module, fusion: Instruction) -> Iterator[str]:
    fused = module.fused(fusion)
    for instruction in fused.instructions if fused else ():
        yield instruction.opcode
        yield from _opcodes(module, instruction)


def _touched(computation: Computation, instruction: Instruction) -> tuple[str, int]:
    """Returns opcode and bytes; for an operation on a slice, bytes of the slice."""
    opcode, operands = instruction.opcode, computation.operands(instruction)
    if opcode in _PARTS:
        return opcode, 2 * instruction.bytes
    if opcode == "scatter":  # arrays, indices, updates; no more places are written than there are
        return opcode, operands[-1].bytes + min(operands[-1].bytes, operands[0].bytes)
    if opcode == "dynamic-update-slice":
        return opcode, 2 * operands[1].bytes
    return opcode, instruction.bytes + sum(operand.bytes for operand in operands)
