"""Sections of the report that `bert-jax compile` prints, and shows on a page."""

import functools
from collections.abc import Iterator

from bert_jax.aot import gpu_sections
from bert_jax.aot.compile_report import PhaseReport, Report
from bert_jax.aot.cost.analysis import Analysis
from bert_jax.aot.cost.gpu_analysis import GpuAnalysis
from bert_jax.aot.hlo.sources import code
from bert_jax.aot.report_parts import collectives_of, in_units, ms
from bert_jax.errors import count
from bert_jax.hardware.gpus import GpuHosts
from bert_jax.hardware.targets import Target
from bert_jax.reporting.plots import stacked_bar, stacked_bars
from bert_jax.reporting.sections import Figure, Part, Section, Table, as_text

_TOP = 20  # source lines and operations listed
_TOP_IN_TEXT = 12
_MIN_SECONDS = 5e-6  # kinds that round to 0.00 ms are not named in the text


def render(report: Report) -> str:
    """Returns the text that is printed."""
    head = Section("", [*settings(report).values(), note(report)])
    return as_text([head, *of_phases(report), Section("", [whole_run(report)])])


def settings(report: Report) -> dict[str, str]:
    """Returns the slice with its mesh, and the compute settings."""
    target, compute = report.target, report.config.compute
    mesh = ", ".join(f"{axis} {size}" for axis, size in report.mesh.items() if size > 1)
    layers = report.config.model.num_hidden_layers
    at_once = min(compute.unroll_layers or layers, layers)
    loop = "all layers unrolled" if at_once == layers else f"scan over layers (unroll={at_once})"
    return {
        "slice": f"{report.name} on {target.name}: {_hardware(target)}, "
        f"{count(target.hosts, 'host')}; mesh {mesh or 'of one device'}",
        "compute": f"{compute.dtype}, attention {compute.attention}, {loop}, remat "
        f"{compute.remat}, optimizer {'sharded' if compute.shard_optimizer else 'replicated'}",
    }


def _hardware(target: Target) -> str:
    if isinstance(target, GpuHosts):
        links = f", {target.model.links} within a host" if target.per_host > 1 else ""
        return f"{count(target.devices, 'GPU')} ({target.model.device_kind}){links}"
    devices = f", {target.devices:,} devices" if target.devices != target.chips else ""
    return f"{count(target.chips, 'chip')}{devices}"


def note(report: Report) -> str:
    """Returns what the numbers are."""
    if isinstance(report.target, GpuHosts):
        return gpu_sections.note(report.compiler)
    return (
        f"Compiled by {report.compiler}; nothing ran. Memory is what the compiler allocates. "
        "Times are estimates:\nthe compiler's cycles, and a roofline lower bound for operations "
        "without a cycle estimate."
    )


def whole_run(report: Report) -> str:
    """Returns the time of all phases together."""
    what = "Whole run" if report.whole else "This phase"
    if not report.fits:
        return f"{what}: not estimated, because it does not fit"
    if isinstance(report.target, GpuHosts):
        return f"{what}: fits; hours are not estimated, because nothing gives them for GPUs"
    return f"{what}: {_cost(report.hours, report.target)}"


def of_phases(report: Report) -> Iterator[Section]:
    """Yields the memory and time of each phase."""
    for phase in report.phases:
        yield Section(*_title(phase, report))
        yield _memory(phase, report.target)
        if isinstance(phase.analysis, GpuAnalysis) and isinstance(report.target, GpuHosts):
            yield from gpu_sections.of_phase(phase, phase.analysis, report.target)
        elif isinstance(phase.analysis, Analysis):
            yield _time(phase, phase.analysis)
            cost = f"This phase: {_cost(phase.hours, report.target)}."
            yield Section("Time of all steps", [cost], in_text=False)
            yield from of_analysis(phase.analysis)


def of_analysis(cost: Analysis) -> Iterator[Section]:
    """Yields where the time of a step goes."""
    yield _where(cost)
    yield _lines(cost)
    yield _operations(cost)
    if cost.collectives:
        yield collectives_of(cost.collectives)
    unknown = [name for name, trips in cost.trips.items() if trips is None]
    if unknown:
        counted = f"Loops with an unknown trip count are counted once: {', '.join(unknown)}."
        yield Section("Loops", [counted])
    if cost.unestimated:
        yield _unestimated(cost)


def _title(phase: PhaseReport, report: Report) -> tuple[str, list[str]]:
    """Returns the heading of a phase, and one line that describes it."""
    shape, phases = phase.phase, len(report.config.phases)
    which = f"Phase {phase.index + 1} of {phases}" if phases > 1 else ""
    rows = shape.batch_size / shape.micro_batches / report.target.devices
    parts = f" in {shape.micro_batches} micro-batches" if shape.micro_batches > 1 else ""
    line = (
        f"{which and f'{which}: '}{shape.steps:,} steps of {shape.batch_size:,} rows of "
        f"{shape.row_tokens} tokens{parts}, {rows:g} per {_device(report.target)} at a time; "
        f"compiled in {phase.compile_seconds:.0f} s"
    )
    return which or "The step", [line]


def _memory(phase: PhaseReport, target: Target) -> Section:
    """Returns whether a phase fits, and what would help if it does not."""
    memory, device = phase.memory, _device(target)
    limit = f" of {in_units(memory.limit)}" if memory.limit else ""
    fits = "fits" if memory.fits else "DOES NOT FIT"
    shown = {kind: amount for kind, amount in memory.kinds.items() if amount}
    if free := max(0, (memory.limit or 0) - memory.total):
        shown["free"] = free
    parts: list[Part] = [
        f"Memory per {device}: {in_units(memory.total)}{limit}, {fits}",
        Figure(functools.partial(stacked_bar, shown), f"Memory of one {device}"),
        Table(("", ""), [(k, in_units(n)) for k, n in memory.kinds.items() if n or memory.fits]),
    ]
    if isinstance(target, GpuHosts):
        parts += [gpu_sections.limit_note(target)]
    if memory.limit and not memory.fits:
        parts += [f"Over the limit by {in_units(memory.total - memory.limit)}."]
        parts += _remedies(phase, memory.limit)
    return Section("Memory", parts)


def _remedies(phase: PhaseReport, limit: int) -> Iterator[Part]:
    if not phase.remedies:
        yield "No change of micro_batches, remat or mesh helps: use more chips or fewer rows."
    elif all(remedy.needed > limit for remedy in phase.remedies):
        (combined,) = phase.remedies
        yield (
            f"Even {combined.flags} needs {in_units(combined.needed)} by estimate: use more chips "
            "or a smaller batch."
        )
    else:
        yield "Changes that should make it fit (estimates, not compiled):"
        rows = [(remedy.flags, in_units(remedy.needed)) for remedy in phase.remedies]
        yield Table(("flags", "needs"), rows)


def _time(phase: PhaseReport, cost: Analysis) -> Section:
    seconds, tokens, share = phase.step_seconds, phase.tokens_per_second, phase.utilization
    if seconds is None or tokens is None or share is None:
        step = "Step: time unknown, because this generation's bandwidth between slices is unknown."
    else:
        step = (
            f"Step: {ms(seconds)}, {tokens:,.0f} tokens/s including padding, "
            f"{share:.1%} MFU; all estimated by the compiler"
        )
    kinds = [kind for kind in cost.unestimated if kind.seconds > _MIN_SECONDS][:3]
    named = f" ({', '.join(f'{kind.kind} {ms(kind.seconds)}' for kind in kinds)})" if kinds else ""
    rows = [
        (f"computation: {cost.cycles / 1e6:,.1f} million cycles", ms(cost.compute_seconds)),
        (f"at least, operations without a cycle estimate{named}", ms(cost.unestimated_seconds)),
    ]
    if cost.exposed_seconds is not None and cost.collective_seconds is not None:
        waiting = f"at least, waiting for collectives ({ms(cost.collective_seconds)} in total)"
        rows.append((waiting, ms(cost.exposed_seconds)))
    return Section("Time of a step", [step, Table(("", ""), rows)])


def _where(cost: Analysis) -> Section:
    """Cycles by part of the model and direction."""
    ways = list(dict.fromkeys(share.direction for share in cost.shares))
    cycles = {(share.part, share.direction): share.total for share in cost.shares}
    rows = []
    for part in dict.fromkeys(share.part for share in cost.shares):
        each = [cycles.get((part, way), 0) for way in ways]
        rows.append((part, *(_share(n, cost) for n in (sum(each), *each))))
    bars = functools.partial(stacked_bars, milliseconds(cost), xlabel="estimated ms per step")
    figure = Figure(bars, "One step on one device, by part of the model")
    return Section("Where the time goes", [figure, Table(("where", "of cycles", *ways), rows)])


def milliseconds(cost: Analysis) -> dict[str, dict[str, float]]:
    """Returns ms per step by part of the model and pass; they add up to the step."""
    cycle = 1e3 * cost.compute_seconds / max(1, cost.cycles)
    rows: dict[str, dict[str, float]] = {}
    for share in cost.shares:
        rows.setdefault(share.part, {})[share.direction] = share.total * cycle
    if cost.unestimated_seconds:
        rows["not estimated"] = {"at least": 1e3 * cost.unestimated_seconds}
    if cost.exposed_seconds:
        rows["collectives"] = {"at least": 1e3 * cost.exposed_seconds}
    return rows


def _lines(cost: Analysis) -> Section:
    rows = [
        (
            f"{line.source.line} {line.source.direction}",
            _share(line.total, cost),
            f"{line.total / 1e6:,.2f} M",
            f"{line.runs:,}",
            code(line.source.line),
        )
        for line in cost.lines[:_TOP]
    ]
    header = ("source line", "of cycles", "cycles", "runs", "its text")
    table = Table(header, rows, columns=4, lines=_TOP_IN_TEXT)
    return Section("Most expensive source lines", [table])


def _operations(cost: Analysis) -> Section:
    rows = [
        (
            op.name,
            f"{op.total / 1e6:,.2f} M",
            f"{op.runs:,}",
            op.result,
            f"{op.source.line} {op.source.direction}",
        )
        for op in cost.operations[:_TOP]
    ]
    table = Table(("operation", "cycles", "runs", "result", "source line"), rows)
    fusion = "A fusion is several operations that the compiler runs as one."
    return Section("Most expensive operations", [fusion, table], in_text=False)


def _unestimated(cost: Analysis) -> Section:
    rows = [
        (
            total.kind,
            f"{total.bytes / 2**20:,.1f} MiB",
            ms(total.seconds),
            f"{total.runs:,}",
            f"{total.flops / 1e9:,.3g}",
        )
        for total in cost.unestimated
    ]
    copies = (
        f"In addition, {cost.copies.runs:,} asynchronous copies move "
        f"{cost.copies.bytes / 2**20:,.0f} MiB between HBM and on-chip memory during computation."
    )
    table = Table(("kind", "bytes", "at least", "runs", "GFLOP"), rows)
    return Section("Operations without a cycle estimate", [table, copies], in_text=False)


def _cost(hours: float | None, target: Target) -> str:
    """Formats hours on a slice, short times in seconds."""
    if hours is None:
        return "time unknown"
    chip_hours = hours * target.chips
    time = f"{hours:,.2f} hours" if hours >= 0.1 else f"{3600 * hours:,.1f} s"
    return (
        f"{time}, {chip_hours:,{'.0f' if chip_hours >= 10 else '.2g'}} chip-hours; "
        "estimated, without evaluation, checkpoints and startup"
    )


def _device(target: Target) -> str:
    if isinstance(target, GpuHosts):
        return "GPU"
    return "chip" if target.devices == target.chips else "core (two per chip)"


def _share(cycles: int, cost: Analysis) -> str:
    """Formats a share of all cycles, "" for 0."""
    return f"{cycles / max(cost.cycles, 1):.1%}" if cycles else ""
