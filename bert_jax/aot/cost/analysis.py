"""What a compiled training step does and how long that takes, read from its optimized HLO text.

    analysis = analyse(compiled.as_text(), mesh_shape=mesh.shape, accelerator=…)

Cycles are the compiler's: a cost model of the hardware, made to choose between fusions. What it
leaves out is added by roofline (roofline.py, collectives.py) and kept apart. Nothing here measures.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.aot.cost import collectives, cycles, overlap, roofline
from bert_jax.aot.cost.collectives import Traffic
from bert_jax.aot.cost.cycles import Line, Operation, Share
from bert_jax.aot.cost.roofline import Copies, Unestimated
from bert_jax.aot.hlo import loops, parser
from bert_jax.aot.hlo.sources import Part
from bert_jax.errors import UserError
from bert_jax.launch.hardware.accelerators import Accelerator


@dataclasses.dataclass(frozen=True)
class Analysis:
    """One call of a program, on one device.

    cycles: that the compiler estimates, loops as often as they turn.
    compute_seconds: those at the accelerator's clock.
    unestimated_seconds: of what has no cycles, by roofline.
    collective_seconds: of all collectives, one after the other, by roofline.
    exposed_seconds: what of those the rest does not hide, in the order of the schedule.
    shares, lines, operations: where the cycles are; lines and operations the dearest only.
    trips: turns of each loop by its name, None where they could not be read (counted once).

    Seconds of collectives are None where the accelerator's bandwidth is not known.
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
        """Compute, what is not estimated, and the collectives that nothing hides."""
        if self.exposed_seconds is None:
            return None
        return self.compute_seconds + self.unestimated_seconds + self.exposed_seconds

    def part_cycles(self, part: Part) -> int:
        """In every direction."""
        return sum(share.total for share in self.shares if share.part == part)


def analyse(
    text: str, *, mesh_shape: Mapping[str, int], accelerator: Accelerator, top: int = 25
) -> Analysis:
    """Reads a program that was compiled for a TPU.

    Args:
        text: `jax.stages.Compiled.as_text()`.
        mesh_shape: sizes of the mesh's axes, in the mesh's order.
        top: how many lines and operations to name.

    Raises:
        UserError: the accelerator is no TPU, or the text is no compiled program.
    """
    if not accelerator.clock or not accelerator.memory_bandwidth:
        raise UserError(
            f"{accelerator.device_kinds[0]}: cycles are estimated by the TPU compiler only"
        )
    module = parser.parse(text)
    runs = loops.executions(module)
    joined = collectives.find(module, runs, mesh_shape, accelerator)
    estimated = cycles.operations(module, runs)
    counted = {(one.computation, end) for one in joined for end in (one.start, one.done) if end}
    bounds = roofline.bounds(module, runs, accelerator, but=counted)
    compute = sum(one.total for one in estimated) / accelerator.clock
    rest = sum(one.runs * one.seconds for one in bounds)
    busy = {(one.computation, one.name): one.cycles / accelerator.clock for one in estimated}
    busy |= {(one.computation, one.name): one.seconds for one in bounds}
    alone = collectives.total_seconds(joined)
    exposed = overlap.seconds(runs, busy, joined) - compute - rest
    return Analysis(
        cycles=sum(one.total for one in estimated),
        compute_seconds=compute,
        unestimated_seconds=rest,
        collective_seconds=alone,
        exposed_seconds=None if alone is None else max(0.0, exposed),
        shares=cycles.shares(estimated),
        lines=cycles.lines(estimated)[:top],
        operations=estimated[:top],
        unestimated=roofline.by_kind(bounds),
        copies=roofline.copies(runs, accelerator),
        collectives=collectives.traffic(joined),
        trips={loop.instruction.name: loop.trips for loop in runs.loops},
    )


def as_dict(analysis: Analysis) -> dict[str, Any]:
    """Plain values, as JSON takes them."""
    return {**dataclasses.asdict(analysis), "step_seconds": analysis.step_seconds}
