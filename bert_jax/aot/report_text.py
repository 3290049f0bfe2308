"""The text that `bert-jax compile` prints."""

from collections.abc import Iterator

from bert_jax.aot.cost.analysis import Analysis
from bert_jax.aot.cost.memory import GIB
from bert_jax.aot.report import PhaseReport, Report
from bert_jax.errors import count
from bert_jax.hardware.slices import Slice
from bert_jax.runtime.console import table

_TOP_LINES = 12  # source lines listed
_MIN_SECONDS = 5e-6  # kinds that round to 0.00 ms are not listed


def render(report: Report) -> str:
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield from heading(report)
    for phase in report.phases:
        yield from ("", *_phase(phase, report))
    yield from ("", *render_all(report))


def heading(report: Report) -> Iterator[str]:
    """Yields the config, the slice, the mesh and the compute settings."""
    tpu_slice = report.tpu_slice
    mesh = ", ".join(f"{axis} {size}" for axis, size in report.mesh.items() if size > 1)
    devices = f", {tpu_slice.devices:,} devices" if tpu_slice.devices != tpu_slice.chips else ""
    yield (
        f"{report.name} on {tpu_slice.name}: {count(tpu_slice.chips, 'chip')}{devices}, "
        f"{count(tpu_slice.hosts, 'host')}; mesh {mesh or 'of one device'}"
    )
    compute = report.config.compute
    layers = report.config.model.num_hidden_layers
    at_once = min(compute.unroll_layers or layers, layers)
    loop = "all layers unrolled" if at_once == layers else f"scan over layers (unroll={at_once})"
    yield (
        f"{compute.dtype}, attention {compute.attention}, {loop}, remat {compute.remat}, optimizer "
        f"{'sharded' if compute.shard_optimizer else 'replicated'}"
    )
    yield (
        f"Compiled by libtpu {report.libtpu}; nothing ran. Memory is what the compiler allocates. "
        "Times are estimates:\nthe compiler's cycles, and a roofline lower bound for operations "
        "without a cycle estimate."
    )


def title(phase: PhaseReport, report: Report) -> str:
    """Returns one line that describes a phase."""
    tpu_slice, shape = report.tpu_slice, phase.phase
    several = len(report.config.phases) > 1
    which = f"Phase {phase.index + 1} of {len(report.config.phases)}: " if several else ""
    rows = shape.batch_size / shape.micro_batches / tpu_slice.devices
    parts = f" in {shape.micro_batches} micro-batches" if shape.micro_batches > 1 else ""
    return (
        f"{which}{shape.steps:,} steps of {shape.batch_size:,} rows of {shape.row_tokens} tokens"
        f"{parts}, {rows:g} per {_device(tpu_slice)} at a time; "
        f"compiled in {phase.compile_seconds:.0f} s"
    )


def _phase(phase: PhaseReport, report: Report) -> Iterator[str]:
    yield title(phase, report)
    yield from ("", *_memory(phase, report.tpu_slice))
    if phase.analysis:
        yield from ("", *_time(phase, phase.analysis))


def verdict(phase: PhaseReport, tpu_slice: Slice) -> Iterator[str]:
    """Yields whether a phase fits, and the excess if it does not."""
    memory = phase.memory
    limit = f" of {in_bytes(memory.limit)}" if memory.limit else ""
    fits = "fits" if memory.fits else "DOES NOT FIT"
    yield f"Memory per {_device(tpu_slice)}: {in_bytes(memory.total)}{limit}, {fits}"
    if memory.limit and not memory.fits:
        yield f"Over the limit by {in_bytes(memory.total - memory.limit)}."


def _memory(phase: PhaseReport, tpu_slice: Slice) -> Iterator[str]:
    memory = phase.memory
    summary, *excess = verdict(phase, tpu_slice)
    yield summary
    rows = [(in_bytes(n), kind) for kind, n in memory.kinds.items() if n or memory.fits]
    yield _indent(table(("", ""), rows).split("\n", 1)[1])
    if memory.fits or not memory.limit:
        return
    yield from excess
    if not phase.remedies:
        yield "No change of micro_batches, remat or mesh helps: use more chips or fewer rows."
    elif all(remedy.needed > memory.limit for remedy in phase.remedies):
        (combined,) = phase.remedies
        yield (
            f"Even {combined.flags} needs {in_bytes(combined.needed)} by estimate: use more chips "
            "or a smaller batch."
        )
    else:
        yield "Changes that should make it fit (estimates, not compiled):"
        rows = [(in_bytes(remedy.needed), remedy.flags) for remedy in phase.remedies]
        yield _indent(table(("needs", "flags"), rows))


def _time(phase: PhaseReport, cost: Analysis) -> Iterator[str]:
    seconds, tokens, share = phase.step_seconds, phase.tokens_per_second, phase.utilization
    if seconds is None or tokens is None or share is None:
        yield "Step: time unknown, because this generation's bandwidth between slices is unknown."
    else:
        yield (
            f"Step: {_ms(seconds)}, {tokens:,.0f} tokens/s including padding, "
            f"{share:.1%} MFU; all estimated by the compiler"
        )
    kinds = [kind for kind in cost.unestimated if kind.seconds > _MIN_SECONDS][:3]
    named = f" ({', '.join(f'{kind.kind} {_ms(kind.seconds)}' for kind in kinds)})" if kinds else ""
    rows = [
        (_ms(cost.compute_seconds), f"computation: {cost.cycles / 1e6:,.1f} million cycles"),
        (_ms(cost.unestimated_seconds), f"at least, operations without a cycle estimate{named}"),
    ]
    if cost.exposed_seconds is not None and cost.collective_seconds is not None:
        waiting = f"at least, waiting for collectives ({_ms(cost.collective_seconds)} in total)"
        rows.append((_ms(cost.exposed_seconds), waiting))
    yield _indent(table(("", ""), rows).split("\n", 1)[1])
    yield from ("", _where(cost), "", _hottest(cost))
    if cost.collectives:
        yield from ("", _traffic(cost))
    unknown = [name for name, trips in cost.trips.items() if trips is None]
    if unknown:
        yield f"\nLoops with an unknown trip count are counted once: {', '.join(unknown)}."


def _where(cost: Analysis) -> str:
    """Returns a table of cycles by part of the model and direction."""
    parts = list(dict.fromkeys(share.part for share in cost.shares))
    ways = list(dict.fromkeys(share.direction for share in cost.shares))
    cycles = {(share.part, share.direction): share.total for share in cost.shares}
    rows = []
    for part in parts:
        each = [cycles.get((part, way), 0) for way in ways]
        rows.append((*(_share(n, cost) for n in (sum(each), *each)), part))
    return _indent(table(("of cycles", *ways, "where"), rows))


def _hottest(cost: Analysis) -> str:
    """Returns a table of the source lines with the most cycles."""
    rows = [
        (
            _share(line.total, cost),
            f"{line.total / 1e6:,.2f} M",
            f"{line.runs:,}",
            f"{line.source.line} {line.source.direction}",
        )
        for line in cost.lines[:_TOP_LINES]
    ]
    return _indent(table(("of cycles", "cycles", "runs", "source line"), rows))


def _traffic(cost: Analysis) -> str:
    """Returns a table of the collectives by kind and mesh axes."""
    rows = [
        (
            f"{traffic.bytes / 2**20:,.1f} MiB",
            "?" if traffic.seconds is None else _ms(traffic.seconds),
            f"{traffic.runs:,}",
            traffic.network.upper(),
            f"{traffic.kind} over {', '.join(traffic.axes) or 'some devices'}"
            + (" overlapped with computation" if traffic.overlapped else ""),
        )
        for traffic in cost.collectives
    ]
    return _indent(table(("bytes", "at least", "runs", "network", "collective"), rows))


def render_all(report: Report) -> Iterator[str]:
    """Yields the time of all phases together."""
    what = "Whole run" if report.whole else "This phase"
    if not report.fits:
        yield f"{what}: not estimated, because it does not fit"
    elif report.hours is None or report.chip_hours is None:
        yield f"{what}: time unknown"
    else:
        digits = ".0f" if report.chip_hours >= 10 else ".2g"
        yield (
            f"{what}: {duration(report.hours)}, {report.chip_hours:,{digits}} chip-hours; "
            "estimated, without evaluation, checkpoints and startup"
        )


def _device(tpu_slice: Slice) -> str:
    return "chip" if tpu_slice.devices == tpu_slice.chips else "core (two per chip)"


def duration(hours: float) -> str:
    """Formats hours, short times in seconds."""
    return f"{hours:,.2f} hours" if hours >= 0.1 else f"{3600 * hours:,.1f} s"


def in_bytes(amount: int) -> str:
    """Formats bytes in GiB, small amounts in MiB or KiB."""
    for size, unit in ((GIB, "GiB"), (2**20, "MiB")):
        if amount >= 0.1 * size:
            return f"{amount / size:,.{2 if size == GIB else 1}f} {unit}"
    return f"{amount / 1024:,.1f} KiB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"


def _share(cycles: int, cost: Analysis) -> str:
    """Formats a share of all cycles, "" for 0."""
    return f"{cycles / max(cost.cycles, 1):.1%}" if cycles else ""


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
