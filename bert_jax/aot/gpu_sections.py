"""Sections of `bert-jax compile`'s report that only GPUs have: bounds, kernels and products."""

from collections.abc import Iterator

from bert_jax.aot.cost.gpu_analysis import GpuAnalysis
from bert_jax.aot.hlo.sources import code
from bert_jax.aot.report_data import PhaseReport
from bert_jax.aot.report_parts import collectives_of, in_units, ms
from bert_jax.errors import count
from bert_jax.reporting.sections import Section, Table

_TOP_IN_TEXT = 12
_FEW = 10**6  # operations; fewer are no product


def of_phase(phase: PhaseReport, cost: GpuAnalysis) -> Iterator[Section]:
    """Yields the lower bound of a step and what it consists of."""
    yield _bound(phase, cost)
    yield _held(cost)
    yield _kernels(cost)
    yield _products(phase, cost)
    yield _lines(cost)
    if cost.collectives:
        yield collectives_of(cost.collectives, cost.networks)
    if cost.callbacks:
        stops = "each stops the GPU until the host has answered"
        yield Section(
            "Calls of the host", [f"{count(cost.callbacks, 'call')} of the host: {stops}"]
        )
    if unknown := [name for name, trips in cost.trips.items() if trips is None]:
        counted = f"Loops with an unknown trip count are counted once: {', '.join(unknown)}."
        yield Section("Loops", [counted])


def _bound(phase: PhaseReport, cost: GpuAnalysis) -> Section:
    rows = [("kernels, one after the other", ms(cost.kernel_seconds))]
    if cost.bound_seconds is None:
        step = "Step: no lower bound, because the bandwidth between these hosts is unknown."
    else:
        tokens = phase.phase.batch_size * phase.phase.row_tokens / cost.bound_seconds
        step = (
            f"Step: at least {ms(cost.bound_seconds)} (a lower bound, no estimate; less where "
            f"arrays stay in the L2 cache), so at most {tokens:,.0f} tokens/s including padding"
        )
        waiting = f"waiting for collectives ({ms(cost.collective_seconds or 0)} in total)"
        rows.append((waiting, ms(cost.exposed_seconds or 0)))
    attention = phase.attention[:1].upper() + phase.attention[1:]
    its = sum(held.bytes for held in cost.held if held.source.line.startswith("ops/attention/"))
    attention += f"; its lines hold {in_units(its)} at the peak" if its else ""
    return Section("Lower bound of a step", [step, Table(("", ""), rows), attention])


def _held(cost: GpuAnalysis) -> Section:
    rows = [
        (
            f"{held.source.line} {held.source.direction}",
            in_units(held.bytes),
            f"{held.arrays:,}",
            code(held.source.line),
        )
        for held in cost.held
    ]
    header = ("source line", "bytes", "arrays", "its text")
    what = "Arrays at the peak of the step, by the source line that makes them"
    table = Table(header, rows, columns=3, lines=_TOP_IN_TEXT)
    return Section("Memory by source line", [f"{what}:", table])


def _kernels(cost: GpuAnalysis) -> Section:
    rows = [
        (
            f"{kernels.library}: {kernels.name}",
            f"{kernels.runs:,}",
            ms(kernels.seconds),
            f"{kernels.bytes / 2**20:,.1f} MiB",
            f"{kernels.flops / 1e9:,.3g}" if kernels.flops >= _FEW else "",
        )
        for kernels in cost.kernels
    ]
    header = ("kernel", "runs", "at least", "bytes", "GFLOP")
    return Section("Kernels", [Table(header, rows)])


def _products(phase: PhaseReport, cost: GpuAnalysis) -> Section:
    rows = [
        (
            f"{total.dtype} {'of the optimizer' if total.of_optimizer else 'of the model'}",
            f"{total.runs:,}",
            f"{total.flops / 1e9:,.3g}",
        )
        for total in cost.products
    ]
    parts: list[str | Table] = [Table(("matrix products", "runs", "GFLOP"), rows)]
    if designed := sum(phase.by_design.values()):
        parts.append(
            f"float32 by design: the gradient of the logits, {designed / cost.model_flops:.2%} of "
            "the model's operations, see docs/gpu.md"
        )
    lines = [(line, f"{flops / cost.model_flops:.2%}") for line, flops in phase.wide.items()]
    if lines:
        parts.append(
            "ERROR of bert-jax: products in float32 where bfloat16 is meant, of all of the "
            "model's operations:"
        )
        parts.append(Table(("source line", "share"), lines, lines=_TOP_IN_TEXT))
    return Section("Matrix products", parts)


def _lines(cost: GpuAnalysis) -> Section:
    rows = [
        (
            f"{line.source.line} {line.source.direction}",
            f"{line.seconds / cost.kernel_seconds:.1%}" if cost.kernel_seconds else "",
            ms(line.seconds),
            f"{line.runs:,}",
            code(line.source.line),
        )
        for line in cost.lines
    ]
    header = ("source line", "of the kernels", "at least", "kernels", "its text")
    table = Table(header, rows, columns=4, lines=_TOP_IN_TEXT)
    return Section("Source lines that take longest, at least", [table])
