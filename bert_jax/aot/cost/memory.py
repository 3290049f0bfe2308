"""Memory of one device while a step runs, and whether it fits."""

import dataclasses
import math
import re
from typing import Any

import jax

from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.training.batches import empty_batch
from bert_jax.training.step import StepFunctions

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class ResidentBytes:
    """Bytes of one device's shards of a step's inputs, without padding."""

    parameters: int
    optimizer: int
    batch: int

    @property
    def total(self) -> int:
        return self.parameters + self.optimizer + self.batch

    @classmethod
    def of(cls, config: Config, phase: PhaseConfig, program: StepFunctions) -> "ResidentBytes":
        state = program.abstract
        batch = program.abstract_batch(empty_batch(config, phase), phase.batch_size)
        optimizer = (state["opt"], state.get("ema"))
        return cls(_bytes(state["params"]), _bytes(optimizer), _bytes(batch))


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device by kind.

    temporaries: activations saved for the backward pass, gradients and intermediates; for a
        program that the compiler rejected, everything that is not an input.
    other: metrics, counters, padding of arrays to the hardware's tiles, the program's code.
    limit: memory that the compiler allows a program; None if unknown.
    fits: whether the compiler accepted the program, or, where it accepts any, the sum is within the
        limit.
    inputs: of the program by the compiler, with padding; None if it rejected it.
    peak: most that is there at the same time, by the compiler; None likewise.
    """

    parameters: int
    optimizer: int
    batch: int
    temporaries: int
    other: int
    limit: int | None
    fits: bool
    inputs: int | None = None
    peak: int | None = None

    @property
    def total(self) -> int:
        return sum(self.kinds.values())

    @property
    def kinds(self) -> dict[str, int]:
        """Bytes by kind, in display order."""
        return {
            "parameters": self.parameters,
            "optimizer": self.optimizer,
            "batch": self.batch,
            "activations and temporaries": self.temporaries,
            "code, padding, metrics": self.other,
        }

    @classmethod
    def of_compiled(
        cls,
        resident: ResidentBytes,
        compiled: jax.stages.Compiled,
        limit: int | None,
        *,
        refuses: bool = True,
    ) -> "Memory":
        stats = compiled.memory_analysis()
        assert stats is not None  # all supported backends provide it
        outputs = stats.output_size_in_bytes - stats.alias_size_in_bytes
        padding = max(0, stats.argument_size_in_bytes - resident.total)
        accepted = cls(
            **vars(resident),
            temporaries=stats.temp_size_in_bytes,
            other=padding + max(0, outputs) + stats.generated_code_size_in_bytes,
            limit=limit,
            fits=True,
            inputs=stats.argument_size_in_bytes,
            peak=stats.peak_memory_in_bytes,
        )
        # The TPU compiler has refused what does not fit; that of GPUs accepts any program.
        over = not refuses and limit is not None and accepted.total > limit
        return dataclasses.replace(accepted, fits=not over)

    @classmethod
    def of_refused(cls, resident: ResidentBytes, refused: "CompileOOM") -> "Memory":
        rest = max(0, refused.needed - resident.total)
        return cls(**vars(resident), temporaries=rest, other=0, limit=refused.limit, fits=False)


@dataclasses.dataclass(frozen=True)
class CompileOOM:
    """The compiler's out-of-memory error; bytes of one device."""

    needed: int
    limit: int

    @classmethod
    def read(cls, message: str) -> "CompileOOM | None":
        """Parses a compiler error; None if it is not about HBM. libtpu rounds to 0.01 GiB."""
        for pattern in _REFUSALS:
            if match := re.search(pattern, message):
                return cls(_amount(*match.group(1, 2)), _amount(*match.group(3, 4)))
        return None


_AMOUNT = r"([\d.]+)([KMGT]?)"
_REFUSALS = (
    rf"\({_AMOUNT}i?B?\) exceeds available HBM \({_AMOUNT}i?B?\)",
    rf"in memory space hbm\. Used {_AMOUNT}i?B? of {_AMOUNT}i?B? hbm",
)


def _amount(number: str, unit: str) -> int:
    return round(float(number) * 1024 ** " KMGT".index(unit or " "))


def _bytes(tree: Any) -> int:
    """Returns the bytes of one device's shards of ShapeDtypeStructs with shardings."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )
