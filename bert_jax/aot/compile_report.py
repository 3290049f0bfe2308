"""Makes the report of `bert-jax compile`: compiles each phase of a run, without devices."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax.aot import backends, lower, memory_advice
from bert_jax.aot.cost.analysis import Analysis
from bert_jax.aot.cost.gpu_analysis import GpuAnalysis
from bert_jax.aot.cost.memory import CompileOOM, Memory, ResidentBytes
from bert_jax.aot.report_data import PhaseReport, Report
from bert_jax.config.schema import Config
from bert_jax.config.serialization import to_dict
from bert_jax.errors import UserError
from bert_jax.hardware.targets import Target
from bert_jax.metrics.flops import step_flops
from bert_jax.ops.attention import dispatch
from bert_jax.parallel import global_batch
from bert_jax.parallel.mesh import make_mesh


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
    backend = backends.of(target)
    mesh = make_mesh(config.mesh, backend.devices(target))
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
        compiler=backend.compiler(),
        phases=tuple(reports),
    )


def phase_report(config: Config, index: int, target: Target, mesh: Mesh) -> PhaseReport:
    """Compiles one phase's step and returns its report.

    Raises:
        UserError: see `make`.
    """
    phase, backend, limit = config.phases[index], backends.of(target), target.usable_bytes
    global_batch.check_divides(mesh, phase.batch_size, phase.micro_batches)
    built = lower.build(config.with_model_of(phase), mesh)
    resident = ResidentBytes.of(config, phase, built)
    lowered = lower.lower(config, phase, mesh, built)
    began = time.perf_counter()
    compiled = compile_or_refuse(lowered, backend.compiler())
    seconds = time.perf_counter() - began
    cost: Analysis | GpuAnalysis | None = None
    if isinstance(compiled, CompileOOM):
        memory = Memory.of_refused(resident, compiled)
    else:
        memory = Memory.of_compiled(resident, compiled, limit, refuses=backend.refuses)
        cost = backend.analyse(compiled.as_text() or "", dict(mesh.shape), target)
    advice = () if memory.fits else memory_advice.remedies(config, index, mesh, memory)
    return PhaseReport(
        index=index,
        phase=phase,
        memory=memory,
        remedies=tuple(advice),
        analysis=cost,
        compile_seconds=seconds,
        flops=step_flops(config, phase, lower.teacher_of(config)),
        devices_flops=target.devices * target.accelerator.bf16_flops,
        attention=dispatch.gpu_note(config, phase, mesh),
        computes_in_16_bits=config.compute.dtype != "float32",
    )


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
    backend = backends.of(report.target)
    return {
        "config": report.name,
        "topology": _topology(report.target, backend.kind(report.target)),
        "mesh": report.mesh,
        "compute": to_dict(report.config.compute),
        "compiler": report.compiler,
        **backend.versions(report.compiler),
        "fits": report.fits,
        "estimated_hours": report.hours,
        "estimated_chip_hours": report.chip_hours,
        "phases": [_phase_dict(phase) for phase in report.phases],
    }


def _topology(target: Target, kind: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a target's name, kind and sizes; of GPUs each is a chip of its own."""
    sizes = {"chips": target.chips, "devices": target.devices, "hosts": target.hosts}
    return {"name": target.name, **kind, **sizes}


def _phase_dict(report: PhaseReport) -> dict[str, Any]:
    memory = report.memory
    return {
        "phase": report.index,
        "config": to_dict(report.phase),
        "fits": memory.fits,
        "memory": {**memory.kinds, "total": memory.total, "limit": memory.limit},
        "input_bytes": memory.inputs,
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
        "analysis": _analysis_dict(report),
    }


def _analysis_dict(report: PhaseReport) -> dict[str, Any] | None:
    if report.analysis is None:
        return None
    is_gpu = isinstance(report.analysis, GpuAnalysis)
    wide = {"wide": dict(report.wide), "by_design": dict(report.by_design)}
    return report.analysis.as_dict() | (wide if is_gpu else {})
