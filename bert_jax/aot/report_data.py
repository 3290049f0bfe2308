"""The report of `bert-jax compile` as data: memory and time of each phase of a run."""

import dataclasses
from collections.abc import Mapping

from bert_jax.aot.cost.analysis import Analysis
from bert_jax.aot.cost.gpu_analysis import GpuAnalysis
from bert_jax.aot.cost.memory import Memory
from bert_jax.aot.memory_advice import Remedy
from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.hardware.targets import Target

_NEGLIGIBLE = 1e-4  # of the model's operations: products with a few classes


@dataclasses.dataclass(frozen=True)
class PhaseReport:
    """One phase's step.

    memory: of one device. remedies: changes that should make it fit, if it does not.
    analysis: None if the compiler rejected the program for its memory. Of GPUs it has a lower bound
        of the time, not an estimate.
    attention: why the step's attention is what it is, on GPUs; "" elsewhere.
    computes_in_16_bits: whether the config asks for that.
    compile_seconds: time this compilation took on this machine.
    flops: of a step, matrix products only. devices_flops: peak FLOP/s of all devices together.
    """

    index: int
    phase: PhaseConfig
    memory: Memory
    remedies: tuple[Remedy, ...]
    analysis: Analysis | GpuAnalysis | None
    compile_seconds: float
    flops: float
    devices_flops: float
    attention: str = ""
    computes_in_16_bits: bool = True

    @property
    def wide(self) -> Mapping[str, int]:
        """Operations by source line of the model's products that should be in 16 bits, of GPUs;
        but for a negligible part of all."""
        cost = self._cost_in_16_bits
        if cost is None:
            return {}
        least = _NEGLIGIBLE * cost.model_flops
        return {line: flops for line, flops in cost.wide.items() if flops > least}

    @property
    def by_design(self) -> Mapping[str, int]:
        """Operations by source line of those that are in float32 by design, of GPUs."""
        cost = self._cost_in_16_bits
        return cost.by_design if cost else {}

    @property
    def _cost_in_16_bits(self) -> GpuAnalysis | None:
        """The analysis, if it is of a GPU and of a model that computes in 16 bits."""
        if isinstance(self.analysis, GpuAnalysis) and self.computes_in_16_bits:
            return self.analysis
        return None

    @property
    def step_seconds(self) -> float | None:
        return self.analysis.step_seconds if self.analysis else None

    @property
    def bound_seconds(self) -> float | None:
        """Seconds that a step takes at least, where that is all that is known: on GPUs."""
        return self.analysis.bound_seconds if self.analysis else None

    @property
    def ranked_seconds(self) -> float | None:
        """Seconds by which configs are compared: the estimate, on GPUs the lower bound."""
        return self.step_seconds or self.bound_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Throughput of all devices, padding included."""
        tokens = self.phase.batch_size * self.phase.row_tokens
        return tokens / self.step_seconds if self.step_seconds else None

    @property
    def utilization(self) -> float | None:
        """Model FLOPs utilization (MFU) at the estimated step time."""
        return self.step_seconds and self.flops / self.step_seconds / self.devices_flops

    @property
    def hours(self) -> float | None:
        """Hours of all steps of the phase, without evaluation and checkpoints."""
        return self.step_seconds and self.phase.steps * self.step_seconds / 3600


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of a config on a slice, or on hosts with GPUs.

    compiler: its name and version.
    """

    name: str
    config: Config
    target: Target
    mesh: dict[str, int]
    compiler: str
    phases: tuple[PhaseReport, ...]

    @property
    def fits(self) -> bool:
        return all(phase.memory.fits for phase in self.phases)

    @property
    def whole(self) -> bool:
        """Returns whether the report covers all phases of the run."""
        return len(self.phases) == len(self.config.phases)

    @property
    def hours(self) -> float | None:
        """Hours of all reported phases."""
        each = [phase.hours for phase in self.phases]
        return sum(h for h in each if h) if all(each) else None

    @property
    def chip_hours(self) -> float | None:
        return self.hours and self.hours * self.target.chips
