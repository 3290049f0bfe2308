"""Compiler-estimated cycles by instruction, source line and part of the model."""

import collections
import dataclasses
from collections.abc import Sequence

from bert_jax.aot.hlo import sources
from bert_jax.aot.hlo.loops import Executions
from bert_jax.aot.hlo.parser import Module
from bert_jax.aot.hlo.sources import Direction, Part, Source


@dataclasses.dataclass(frozen=True)
class Operation:
    """An instruction with a cycle estimate.

    result: its largest array. cycles: per execution. runs: executions per step.
    """

    computation: str
    name: str
    opcode: str
    op_name: str
    result: str
    source: Source
    cycles: int
    runs: int

    @property
    def total(self) -> int:
        return self.cycles * self.runs


@dataclasses.dataclass(frozen=True)
class Line:
    """All operations of a source line in one direction; total: cycles per step."""

    source: Source
    total: int
    runs: int


@dataclasses.dataclass(frozen=True)
class Share:
    """Cycles per step of a part of the model in one direction."""

    part: Part
    direction: Direction
    total: int


def operations(module: Module, runs: Executions) -> tuple[Operation, ...]:
    """Returns all instructions with a cycle estimate, most expensive first."""
    estimated = [
        Operation(
            computation=computation.name,
            name=instruction.name,
            opcode=instruction.opcode,
            op_name=module.op_name(instruction),
            result=str(max(instruction.shapes, key=lambda shape: shape.bytes, default="")),
            source=sources.source(module, computation, instruction),
            cycles=instruction.cycles or 0,
            runs=times,
        )
        for computation, instruction, times in runs.counts(lambda i: i.cycles is not None)
    ]
    return tuple(sorted(estimated, key=lambda operation: -operation.total))


def lines(operations: Sequence[Operation]) -> tuple[Line, ...]:
    """Returns cycles by source line and direction, most expensive first."""
    total: collections.Counter[Source] = collections.Counter()
    runs: collections.Counter[Source] = collections.Counter()
    for operation in operations:
        total[operation.source] += operation.total
        runs[operation.source] += operation.runs
    return tuple(Line(source, n, runs[source]) for source, n in total.most_common())


def shares(operations: Sequence[Operation]) -> tuple[Share, ...]:
    """Returns cycles by part of the model and direction, in the order of a step."""
    total: collections.Counter[tuple[Part, Direction]] = collections.Counter()
    for operation in operations:
        total[operation.source.part, operation.source.direction] += operation.total
    return tuple(
        Share(part, direction, total[part, direction])
        for part in sources.PARTS
        for direction in sources.DIRECTIONS
        if total[part, direction]
    )
