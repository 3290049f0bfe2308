"""Hosts with NVIDIA GPUs as a backend of `bert-jax compile`: XLA's compiler, and lower bounds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bert_jax.aot import gpu_compiler
from bert_jax.aot.backend import Backend
from bert_jax.aot.cost import gpu_analysis
from bert_jax.aot.cost.gpu_analysis import GpuAnalysis
from bert_jax.errors import count
from bert_jax.hardware.gpus import FRACTION_VARIABLE, GpuHosts, memory_fraction

if TYPE_CHECKING:
    import jax

    from bert_jax.aot.report_data import PhaseReport, Report
    from bert_jax.reporting.sections import Part, Section


class GpuBackend(Backend[GpuHosts]):
    refuses = False
    place = "each host"
    estimates = False
    ranking = (
        "Layers are in a loop. Tokens/s are at most these, by lower bounds of the time, which "
        "also give the order"
    )

    def prepare(self) -> None:
        memory_fraction()  # refuses a wrong one before anything is compiled
        gpu_compiler.prepare()

    def compiler(self) -> str:
        return gpu_compiler.name()

    def devices(self, target: GpuHosts) -> Sequence["jax.Device"]:
        return gpu_compiler.devices(target)

    def analyse(self, text: str, mesh_shape: Mapping[str, int], target: GpuHosts) -> GpuAnalysis:
        return gpu_analysis.analyse(text, mesh_shape=mesh_shape, hosts=target)

    def kind(self, target: GpuHosts) -> Mapping[str, Any]:
        links = {"links": target.model.links} if target.linked > 1 else {}
        return {"gpu": target.model.device_kind, **links}

    def hardware(self, target: GpuHosts) -> str:
        joined = target.linked // target.per_host  # more than one in a rack
        within = f"{joined} hosts" if joined > 1 else "a host"
        links = f", {target.model.links} within {within}" if target.linked > 1 else ""
        return f"{count(target.devices, 'GPU')} ({target.model.device_kind}){links}"

    def device(self, target: GpuHosts) -> str:
        return "GPU"

    def note(self, compiler: str) -> str:
        return (
            f"Compiled by {compiler}; nothing ran. Memory is what the compiler\nallocates; a run, "
            "which times kernels first, may choose others that need more or less. Times are\nlower "
            "bounds: operations at the GPU's peak, or bytes at its memory's bandwidth."
        )

    def of_memory(self, target: GpuHosts) -> Sequence["Part"]:
        from bert_jax.aot.report_parts import in_units

        share, source = memory_fraction()
        raises = "" if share >= 0.9 else f"; {source or FRACTION_VARIABLE}=0.9 raises it"
        return [
            f"The limit is {share:.0%} of {in_units(target.model.memory)}, the most that JAX takes "
            f"({source or 'its default'}{raises})."
        ]

    def sections(self, phase: "PhaseReport", target: GpuHosts) -> Iterator["Section"]:
        from bert_jax.aot import gpu_sections  # it imports JAX

        if isinstance(phase.analysis, GpuAnalysis):
            yield from gpu_sections.of_phase(phase, phase.analysis)

    def run_time(self, report: "Report") -> str:
        return "fits; hours are not estimated, because nothing gives them for GPUs"

    def train_command(self, target: GpuHosts, words: str) -> str:
        job = ""
        if target.hosts > 1:  # else each would train a model of its own
            job = f" --coordinator=HOST:8476 --num_processes={target.hosts} --process_id=I"
        return f"bert-jax pretrain {words} --config.data.store=… --workdir=…{job}"
