"""Analyses a training step compiled for GPUs, from its optimized HLO text.

XLA's GPU compiler gives no estimate of the time. What is counted is a lower bound: each kernel
takes at least as long as its products at the GPU's peak and its arrays at the memory's bandwidth,
each read or written once. Products of float32 operands run as TF32, at half the rate of bfloat16.
"""

import collections
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from bert_jax.aot.cost import collectives, held, overlap, products, roofline
from bert_jax.aot.cost.collectives import Traffic
from bert_jax.aot.cost.held import LineArrays
from bert_jax.aot.cost.products import Placed, ProductTotal
from bert_jax.aot.hlo import loops, parser, sources
from bert_jax.aot.hlo.parser import Instruction, Module
from bert_jax.aot.hlo.sources import Source
from bert_jax.hardware.gpus import GpuHosts

_FUSION_KIND = re.compile(r'"fusion_backend_config":\s*\{"kind":\s*"([^"]*)"')
_LOGITS = ("model/heads.py", "word_logits")
_LIBRARIES = {"__cudnn": "cuDNN", "__cublas$lt": "cuBLASLt", "__cublas": "cuBLAS", "__cub$": "CUB"}


@dataclasses.dataclass(frozen=True)
class Kernels:
    """Kernels of a kind: totals of a step. library: cuDNN, cuBLASLt, Triton, XLA, ….
    seconds: at least."""

    library: str
    name: str
    runs: int
    bytes: int
    flops: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class LineBound:
    """All kernels of a source line in one direction; seconds: at least, of a step."""

    source: Source
    runs: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class GpuAnalysis:
    """One execution of a program on one GPU. All seconds are lower bounds.

    kernel_seconds: of all kernels, one after the other.
    collective_seconds: of all collectives, one after the other; exposed_seconds: the part that no
        kernel hides, in schedule order. None if the bandwidth between hosts is unknown.
    wide: operations by source line of the model's products that are not in 16 bits; by_design: of
        those that are meant to be so, see `products.Placed.is_by_design`.
    held: arrays at the peak of the schedule, by source line.
    networks: names of those of the collectives, see `GpuHosts.networks`.
    callbacks: calls of the host, which stop the GPU.
    trips: trip count of each loop by name, None if unknown (counted once).
    """

    kernel_seconds: float
    collective_seconds: float | None
    exposed_seconds: float | None
    kernels: tuple[Kernels, ...]
    products: tuple[ProductTotal, ...]
    wide: Mapping[str, int]
    by_design: Mapping[str, int]
    lines: tuple[LineBound, ...]
    held: tuple[LineArrays, ...]
    collectives: tuple[Traffic, ...]
    networks: Mapping[str, str]
    callbacks: int
    trips: Mapping[str, int | None]

    @property
    def step_seconds(self) -> None:
        """None: the compiler does not estimate the time."""
        return None

    @property
    def model_flops(self) -> int:
        """Operations of the model's products."""
        return sum(total.flops for total in self.products if not total.of_optimizer)

    @property
    def bound_seconds(self) -> float | None:
        """Seconds that a step takes at least; None if a bandwidth is unknown."""
        return None if self.exposed_seconds is None else self.kernel_seconds + self.exposed_seconds

    def as_dict(self) -> dict[str, Any]:
        """Returns JSON-serializable values."""
        found = {**dataclasses.asdict(self), "bound_seconds": self.bound_seconds}
        names = found.pop("networks")
        for traffic in found["collectives"]:
            traffic["network"] = names[traffic["network"]]
        return found


def analyse(
    text: str, *, mesh_shape: Mapping[str, int], hosts: GpuHosts, top: int = 25
) -> GpuAnalysis:
    """Analyses a program compiled for GPUs.

    Args:
        text: `jax.stages.Compiled.as_text()`.
        mesh_shape: axis sizes, in the mesh's order.
        top: number of source lines to return.

    Raises:
        UserError: the text is not a compiled program.
    """
    module, accelerator = parser.parse(text), hosts.accelerator
    runs = loops.executions(module)
    transfers = collectives.find(module, runs, mesh_shape, accelerator, hosts.linked)
    placed: list[Placed] = []
    bounds: list[tuple[roofline.Bound, str, str, Source]] = []
    for bound in roofline.bounds(module, runs, accelerator, small=1):
        computation = module.computations[bound.computation]
        instruction = computation.by_name[bound.name]
        source = sources.source(module, computation, instruction)
        found = products.of(module, computation, instruction)
        in_logits = sources.is_in(module, instruction, *_LOGITS)
        placed += [Placed(product, source, bound.runs, in_logits) for product in found]
        busy = sum(p.flops / accelerator.bf16_flops * (2 if "f32" in p.dtype else 1) for p in found)
        flops, seconds = sum(p.flops for p in found), max(bound.seconds, busy)
        bound = dataclasses.replace(bound, flops=flops, seconds=seconds)
        bounds.append((bound, *kernel(module, instruction, bound.kind), source))
    each = {(bound.computation, bound.name): bound.seconds for bound, *_ in bounds}
    total = sum(bound.runs * bound.seconds for bound, *_ in bounds)
    waiting = collectives.total_seconds(transfers)
    exposed = overlap.seconds(runs, each, transfers) - total
    return GpuAnalysis(
        kernel_seconds=total,
        collective_seconds=waiting,
        exposed_seconds=None if waiting is None else max(0.0, exposed),
        kernels=_by_kernel([(bound, library, name) for bound, library, name, _ in bounds]),
        products=products.totals(placed),
        wide=products.wide(placed),
        by_design=products.wide(placed, by_design=True),
        lines=_by_line([(bound, source) for bound, _, _, source in bounds])[:top],
        held=held.at_peak(module, text)[:top],
        collectives=collectives.traffic(transfers),
        networks=hosts.networks,
        callbacks=sum(times for *_, times in runs.counts(_is_callback)),
        trips=runs.trips,
    )


def kernel(module: Module, instruction: Instruction, kind: str) -> tuple[str, str]:
    """Returns the library and the name of the kernel that runs an instruction.

    kind: of its roofline, such as "scatter", for kernels of XLA.
    """
    target = instruction.target
    if instruction.opcode == "fusion":
        found = _FUSION_KIND.search(instruction.rest)
        target = found[1] if found else ""
        if target.startswith("__triton"):
            inside = products.of(module, module.entry, instruction)
            return "Triton", "matrix product" if inside else "fusion"
        way = instruction.attribute("kind").removeprefix("k").lower()
        kind = f"{way} fusion" if kind == "fusion" else kind
    for start, library in _LIBRARIES.items():
        if target.startswith(start):
            return library, target
    return "XLA", target or kind


def _is_callback(instruction: Instruction) -> bool:
    return "callback" in instruction.target or instruction.opcode in ("outfeed", "infeed")


def _by_kernel(bounds: list[tuple[roofline.Bound, str, str]]) -> tuple[Kernels, ...]:
    groups: Mapping[tuple[str, str], list[roofline.Bound]] = collections.defaultdict(list)
    for bound, library, name in bounds:
        groups[library, name].append(bound)
    kinds = [
        Kernels(
            *key,
            runs=sum(b.runs for b in group),
            bytes=sum(b.runs * b.bytes for b in group),
            flops=sum(b.runs * b.flops for b in group),
            seconds=sum(b.runs * b.seconds for b in group),
        )
        for key, group in groups.items()
    ]
    return tuple(sorted(kinds, key=lambda kernels: -kernels.seconds))


def _by_line(bounds: list[tuple[roofline.Bound, Source]]) -> tuple[LineBound, ...]:
    seconds: collections.Counter[Source] = collections.Counter()
    runs: collections.Counter[Source] = collections.Counter()
    for bound, source in bounds:
        seconds[source] += bound.runs * bound.seconds  # type: ignore[assignment]
        runs[source] += bound.runs
    return tuple(LineBound(source, runs[source], n) for source, n in seconds.most_common())
