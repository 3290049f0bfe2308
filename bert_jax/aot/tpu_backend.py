"""TPU slices as a backend of `bert-jax compile`: libtpu, and its estimates of the time."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bert_jax.aot import topology
from bert_jax.aot.backend import Backend
from bert_jax.aot.cost import analysis
from bert_jax.aot.cost.analysis import Analysis
from bert_jax.errors import count
from bert_jax.hardware.slices import Slice

if TYPE_CHECKING:
    import jax

    from bert_jax.aot.report_data import PhaseReport, Report
    from bert_jax.reporting.sections import Section


class TpuBackend(Backend[Slice]):
    refuses = True
    place = "the slice"
    estimates = True
    ranking = "Times and their order are estimates"

    def prepare(self) -> None:
        topology.prepare()

    def compiler(self) -> str:
        return f"libtpu {topology.version()}"

    def versions(self, compiler: str) -> Mapping[str, str]:
        return {"libtpu": compiler.removeprefix("libtpu ")}

    def devices(self, target: Slice) -> Sequence["jax.Device"]:
        return topology.devices(target)

    def analyse(self, text: str, mesh_shape: Mapping[str, int], target: Slice) -> Analysis:
        return analysis.analyse(text, mesh_shape=mesh_shape, accelerator=target.accelerator)

    def kind(self, target: Slice) -> Mapping[str, Any]:
        return {"shape": list(target.shape), "slices": target.count}

    def hardware(self, target: Slice) -> str:
        devices = f", {target.devices:,} devices" if target.devices != target.chips else ""
        return f"{count(target.chips, 'chip')}{devices}"

    def device(self, target: Slice) -> str:
        return "chip" if target.devices == target.chips else "core (two per chip)"

    def note(self, compiler: str) -> str:
        return (
            f"Compiled by {compiler}; nothing ran. Memory is what the compiler allocates. "
            "Times are estimates:\nthe compiler's cycles, and a roofline lower bound for "
            "operations without a cycle estimate."
        )

    def sections(self, phase: "PhaseReport", target: Slice) -> Iterator["Section"]:
        from bert_jax.aot import tpu_sections  # it imports JAX

        if isinstance(phase.analysis, Analysis):
            yield from tpu_sections.of_phase(phase, phase.analysis, target.chips)

    def run_time(self, report: "Report") -> str:
        from bert_jax.aot import tpu_sections

        return tpu_sections.run_time(report.hours, report.target.chips)

    def train_command(self, target: Slice, words: str) -> str:
        backend, place = "tpu", "--zone=…"
        if target.generation.name == "tpu7x":  # not available as a queued resource
            backend, place = "gke", "--image=…"
        return (
            f"bert-jax launch {backend} run --name=… --topology={target.name} {place} "
            f"pretrain {words} --config.data.store=gs://… --workdir=gs://…"
        )
