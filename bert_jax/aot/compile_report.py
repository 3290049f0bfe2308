"""The result of `bert-jax compile`: memory and time of each phase of a run, as data."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax.aot import lower, memory_advice, topology
from bert_jax.aot.cost import analysis, gpu_analysis
from bert_jax.aot.cost.analysis import Analysis
from bert_jax.aot.cost.gpu_analysis import GpuAnalysis
from bert_jax.aot.cost.memory import CompileOOM, Memory, ResidentBytes
from bert_jax.aot.memory_advice import Remedy
from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.config.serialization import to_dict
from bert_jax.errors import UserError
from bert_jax.hardware.gpus import GpuHosts
from bert_jax.hardware.targets import Target
from bert_jax.metrics.flops import step_flops
from bert_jax.ops.attention import dispatch
from bert_jax.parallel import global_batch
from bert_jax.parallel.mesh import make_mesh


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
    def step_seconds(self) -> float | None:
        return self.analysis.step_seconds if self.analysis else None

    @property
    def bound_seconds(self) -> float | None:
        """Seconds that a step takes at least, where that is all that is known: on GPUs."""
        return self.analysis.bound_seconds if isinstance(self.analysis, GpuAnalysis) else None

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


def make(
    name: str,
    config: Config,
    target: Target,
    phases: Sequence[int],
    working: Callable[[str], AbstractContextManager[None]],
) -> Report:
    """Compiles phases of a config for a target and reports their memory and time.

    Args:
        name: display name of the config.
        phases: phase indices, from 0.
        working: context manager around each compilation; takes its description. One may take
            minutes.

    Raises:
        UserError: the config does not fit the target's topology, or compilation fails for a reason
            other than memory.
    """
    mesh = make_mesh(config.mesh, topology.devices(target))
    for phase in (config.phases[index] for index in phases):  # before the first compilation
        global_batch.check_divides(mesh, phase.batch_size, phase.micro_batches)
    reports = []
    for index in phases:
        several = f" phase {index + 1} of {len(config.phases)}" if len(config.phases) > 1 else ""
        with working(f"compiling {name}{several} for {target.name}"):
            reports.append(phase_report(config, index, target, mesh))
    return Report(
        name=name,
        config=config,
        target=target,
        mesh={axis: int(size) for axis, size in mesh.shape.items()},
        compiler=topology.compiler(target),
        phases=tuple(reports),
    )


def phase_report(config: Config, index: int, target: Target, mesh: Mesh) -> PhaseReport:
    """Compiles one phase's step and returns its report.

    Raises:
        UserError: see `make`.
    """
    phase, accelerator = config.phases[index], target.accelerator
    global_batch.check_divides(mesh, phase.batch_size, phase.micro_batches)
    built = lower.build(config.with_model_of(phase), mesh)
    resident = ResidentBytes.of(config, phase, built)
    lowered = lower.lower(config, phase, mesh, built)
    began = time.perf_counter()
    compiled = compile_or_refuse(lowered, topology.compiler(target))
    seconds = time.perf_counter() - began
    cost: Analysis | GpuAnalysis | None = None
    if isinstance(compiled, CompileOOM):
        memory = Memory.of_refused(resident, compiled)
    else:
        refuses = not isinstance(target, GpuHosts)
        memory = Memory.of_compiled(resident, compiled, target.usable_bytes, refuses=refuses)
        cost = _analyse(compiled.as_text() or "", dict(mesh.shape), target)
    advice = () if memory.fits else memory_advice.remedies(config, index, mesh, memory)
    return PhaseReport(
        index=index,
        phase=phase,
        memory=memory,
        remedies=tuple(advice),
        analysis=cost,
        compile_seconds=seconds,
        flops=step_flops(config, phase, lower.teacher_of(config)),
        devices_flops=target.devices * accelerator.bf16_flops,
        attention=dispatch.gpu_note(config, index, mesh),
        computes_in_16_bits=config.compute.dtype != "float32",
    )


def _analyse(text: str, mesh_shape: dict[str, int], target: Target) -> Analysis | GpuAnalysis:
    if isinstance(target, GpuHosts):
        return gpu_analysis.analyse(text, mesh_shape=mesh_shape, hosts=target)
    return analysis.analyse(text, mesh_shape=mesh_shape, accelerator=target.accelerator)


def compile_or_refuse(
    lowered: jax.stages.Lowered, compiler: str
) -> jax.stages.Compiled | CompileOOM:
    """Returns the compiled program, or the out-of-memory error that the compiler reports.

    compiler: its name and version, for the error.

    Raises:
        UserError: any other failure of the compiler.
    """
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        refused = CompileOOM.read(str(error))
        if refused is None:
            reason = " ".join(str(error).split())[:500]
            raise UserError(f"{compiler} cannot compile the step: {reason}") from error
        return refused


def as_dict(report: Report) -> dict[str, Any]:
    """Returns the report as JSON-serializable values: bytes per device, seconds per step."""
    on_gpus = isinstance(report.target, GpuHosts)
    return {
        "config": report.name,
        "topology": _topology(report.target),
        "mesh": report.mesh,
        "compute": to_dict(report.config.compute),
        "compiler": report.compiler,
        **({} if on_gpus else {"libtpu": report.compiler.removeprefix("libtpu ")}),
        "fits": report.fits,
        "estimated_hours": report.hours,
        "estimated_chip_hours": report.chip_hours,
        "phases": [_phase_dict(phase) for phase in report.phases],
    }


def _topology(target: Target) -> dict[str, Any]:
    """Returns a target's name and sizes; of GPUs each is a chip of its own."""
    sizes = {"chips": target.chips, "devices": target.devices, "hosts": target.hosts}
    if isinstance(target, GpuHosts):
        return {"name": target.name, "gpu": target.model.device_kind, **sizes}
    return {"name": target.name, "shape": list(target.shape), "slices": target.count, **sizes}


def _phase_dict(report: PhaseReport) -> dict[str, Any]:
    memory = report.memory
    return {
        "phase": report.index,
        "config": to_dict(report.phase),
        "fits": memory.fits,
        "memory": {**memory.kinds, "total": memory.total, "limit": memory.limit},
        "remedies": [
            {"changes": dict(r.changes), "estimated_total": r.needed} for r in report.remedies
        ],
        "compile_seconds": report.compile_seconds,
        "flops": report.flops,
        **({"attention": report.attention} if report.attention else {}),
        "estimated_step_seconds": report.step_seconds,
        "at_least_step_seconds": report.bound_seconds,
        "estimated_tokens_per_second": report.tokens_per_second,
        "estimated_utilization": report.utilization,
        "estimated_hours": report.hours,
        "analysis": _analysis_dict(report.analysis),
    }


def _analysis_dict(cost: Analysis | GpuAnalysis | None) -> dict[str, Any] | None:
    if isinstance(cost, GpuAnalysis):
        return gpu_analysis.as_dict(cost)
    return analysis.as_dict(cost) if cost else None
