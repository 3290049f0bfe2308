"""What one device holds while a step runs, and whether it fits."""

import dataclasses
import math
import re
from typing import Any

import jax

from bert_jax.training.step import StepFunctions

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class ResidentBytes:
    """Bytes of a device's shards of what goes into a step, without padding."""

    parameters: int
    optimizer: int
    batch: int

    @classmethod
    def of(cls, program: StepFunctions, batch: Any) -> "ResidentBytes":
        state = program.abstract
        return cls(_bytes(state["params"]), _bytes(state["opt"]), _bytes(batch))


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device by what they hold.

    temporaries: activations kept for the backward pass, gradients and everything in between; of a
        program that the compiler refused, all that it does not say more of.
    other: metrics, counters, padding of arrays to the hardware's tiles, the program's code.
    limit: what the compiler gives a program; None where it is not known.
    fits: whether the compiler took it.
    """

    parameters: int
    optimizer: int
    batch: int
    temporaries: int
    other: int
    limit: int | None
    fits: bool

    @property
    def total(self) -> int:
        return self.parameters + self.optimizer + self.batch + self.temporaries + self.other

    @property
    def kinds(self) -> dict[str, int]:
        """Bytes by kind, in the order they are shown in."""
        return {
            "parameters": self.parameters,
            "optimizer": self.optimizer,
            "batch": self.batch,
            "activations and temporaries": self.temporaries,
            "code, padding, metrics": self.other,
        }

    @classmethod
    def of_compiled(
        cls, held: ResidentBytes, compiled: jax.stages.Compiled, limit: int | None
    ) -> "Memory":
        found = compiled.memory_analysis()
        assert found is not None  # every backend that we compile for has it
        inputs = held.parameters + held.optimizer + held.batch
        outputs = found.output_size_in_bytes - found.alias_size_in_bytes
        padding = max(0, found.argument_size_in_bytes - inputs)
        return cls(
            held.parameters,
            held.optimizer,
            held.batch,
            found.temp_size_in_bytes,
            padding + max(0, outputs) + found.generated_code_size_in_bytes,
            limit,
            fits=True,
        )

    @classmethod
    def of_refused(cls, held: ResidentBytes, refused: "CompileOOM") -> "Memory":
        rest = refused.needed - held.parameters - held.optimizer - held.batch
        return cls(
            held.parameters,
            held.optimizer,
            held.batch,
            max(0, rest),
            0,
            refused.limit,
            fits=False,
        )


@dataclasses.dataclass(frozen=True)
class CompileOOM:
    """A program too large for the memory, as the compiler says; bytes of one device."""

    needed: int
    limit: int

    @classmethod
    def read(cls, message: str) -> "CompileOOM | None":
        """What a compiler's error says; None where it is about something else.

        libtpu rounds to a hundredth of a GiB.
        """
        for pattern in _REFUSALS:
            if found := re.search(pattern, message):
                return cls(_amount(*found.group(1, 2)), _amount(*found.group(3, 4)))
        return None


_AMOUNT = r"([\d.]+)([KMGT]?)"
_REFUSALS = (
    rf"\({_AMOUNT}i?B?\) exceeds available HBM \({_AMOUNT}i?B?\)",
    rf"in memory space hbm\. Used {_AMOUNT}i?B? of {_AMOUNT}i?B? hbm",
)


def _amount(number: str, unit: str) -> int:
    return round(float(number) * 1024 ** " KMGT".index(unit or " "))


def _bytes(tree: Any) -> int:
    """Of one device's shards of ShapeDtypeStructs with shardings."""

    def leaf(x: Any) -> int:
        return math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize

    return sum(map(leaf, jax.tree.leaves(tree)))
