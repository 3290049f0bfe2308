"""Estimates the time of a compiled training step, and its parts, from its optimized HLO text.

    analysis = analyse(compiled.as_text(), mesh_shape=mesh.shape, accelerator=…)

Cycles come from the compiler's cost model of the hardware, which it uses to choose between fusions.
Operations that the model leaves out get roofline estimates (roofline.py, collectives.py), which are
reported separately. Nothing here is measured.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.aot.cost import collectives, cycles, overlap, roofline
from bert_jax.aot.cost.collectives import Traffic
from bert_jax.aot.cost.cycles import Line, Operation, Share
from bert_jax.aot.cost.roofline import Copies, Unestimated
from bert_jax.aot.hlo import loops, parser
from bert_jax.errors import UserError
from bert_jax.hardware.accelerators import Accelerator


@dataclasses.dataclass(frozen=True)
class Analysis:
    """One execution of a program on one device.

    cycles: the compiler's estimate, loop bodies multiplied by their trip counts.
    compute_seconds: the cycles at the accelerator's clock rate.
    unestimated_seconds: roofline time of operations without a cycle estimate.
    collective_seconds: roofline time of all collectives, one after the other.
    exposed_seconds: the part of it that computation does not overlap, in schedule order.
    shares, lines, operations: cycles by part of the model, by source line and by operation; only
        the most expensive lines and operations.
    trips: trip count of each loop by name, None if unknown (counted once).

    Seconds of collectives are None if the accelerator's bandwidth is unknown.
    """

    cycles: int
    compute_seconds: float
    unestimated_seconds: float
    collective_seconds: float | None
    exposed_seconds: float | None
    shares: tuple[Share, ...]
    lines: tuple[Line, ...]
    operations: tuple[Operation, ...]
    unestimated: tuple[Unestimated, ...]
    copies: Copies
    collectives: tuple[Traffic, ...]
    trips: Mapping[str, int | None]

    @property
    def step_seconds(self) -> float | None:
        """Compute, operations without a cycle estimate, and exposed collectives."""
        if self.exposed_seconds is None:
            return None
        return self.compute_seconds + self.unestimated_seconds + self.exposed_seconds

    @property
    def bound_seconds(self) -> None:
        """None: there is an estimate."""
        return None

    def as_dict(self) -> dict[str, Any]:
        """Returns JSON-serializable values."""
        return {**dataclasses.asdict(self), "step_seconds": self.step_seconds}


def analyse(
    text: str, *, mesh_shape: Mapping[str, int], accelerator: Accelerator, top: int = 25
) -> Analysis:
    """Analyses a program compiled for a TPU.

    Args:
        text: `jax.stages.Compiled.as_text()`.
        mesh_shape: axis sizes, in the mesh's order.
        top: number of lines and operations to return.

    Raises:
        UserError: the accelerator is not a TPU, or the text is not a compiled program.
    """
    if not accelerator.clock or not accelerator.memory_bandwidth:
        raise UserError(f"{accelerator.device_kinds[0]}: only the TPU compiler estimates cycles")
    module = parser.parse(text)
    runs = loops.executions(module)
    transfers = collectives.find(module, runs, mesh_shape, accelerator)
    estimated = cycles.operations(module, runs)
    counted = {(c.computation, end) for c in transfers for end in (c.start, c.done) if end}
    bounds = roofline.bounds(module, runs, accelerator, exclude=counted)
    compute = sum(op.total for op in estimated) / accelerator.clock
    rest = sum(bound.runs * bound.seconds for bound in bounds)
    busy = {(op.computation, op.name): op.cycles / accelerator.clock for op in estimated}
    busy |= {(bound.computation, bound.name): bound.seconds for bound in bounds}
    collective_seconds = collectives.total_seconds(transfers)
    exposed = overlap.seconds(runs, busy, transfers) - compute - rest
    return Analysis(
        cycles=sum(op.total for op in estimated),
        compute_seconds=compute,
        unestimated_seconds=rest,
        collective_seconds=collective_seconds,
        exposed_seconds=None if collective_seconds is None else max(0.0, exposed),
        shares=cycles.shares(estimated),
        lines=cycles.lines(estimated)[:top],
        operations=estimated[:top],
        unestimated=roofline.by_kind(bounds),
        copies=roofline.copies(runs, accelerator),
        collectives=collectives.traffic(transfers),
        trips=runs.trips,
    )
