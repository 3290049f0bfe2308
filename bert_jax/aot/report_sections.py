"""Sections of the report that `bert-jax compile` prints, and shows on a page."""

import functools
from collections.abc import Iterator

from bert_jax.aot import backends
from bert_jax.aot.memory_advice import rows_per_device
from bert_jax.aot.report_data import PhaseReport, Report
from bert_jax.aot.report_parts import in_units
from bert_jax.errors import count
from bert_jax.hardware.targets import Target
from bert_jax.reporting.plots import stacked_bar
from bert_jax.reporting.sections import Figure, Part, Section, Table, as_text


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
        "slice": f"{report.name} on {target.name}: {backends.of(target).hardware(target)}, "
        f"{count(target.hosts, 'host')}; mesh {mesh or 'of one device'}",
        "compute": f"{compute.dtype}, attention {compute.attention}, {loop}, remat "
        f"{compute.remat}, optimizer {'sharded' if compute.shard_optimizer else 'replicated'}",
    }


def note(report: Report) -> str:
    """Returns what the numbers are."""
    return backends.of(report.target).note(report.compiler)


def whole_run(report: Report) -> str:
    """Returns the time of all phases together."""
    what = "Whole run" if report.whole else "This phase"
    if not report.fits:
        return f"{what}: not estimated, because it does not fit"
    return f"{what}: {backends.of(report.target).run_time(report)}"


def of_phases(report: Report) -> Iterator[Section]:
    """Yields the memory and time of each phase."""
    for phase in report.phases:
        yield Section(*_title(phase, report))
        yield _memory(phase, report.target)
        yield from backends.of(report.target).sections(phase, report.target)


def _title(phase: PhaseReport, report: Report) -> tuple[str, list[str]]:
    """Returns the heading of a phase, and one line that describes it."""
    shape, phases = phase.phase, len(report.config.phases)
    device = backends.of(report.target).device(report.target)
    which = f"Phase {phase.index + 1} of {phases}" if phases > 1 else ""
    rows = rows_per_device(report.config, phase.index, report.mesh)
    parts = f" in {shape.micro_batches} micro-batches" if shape.micro_batches > 1 else ""
    line = (
        f"{which and f'{which}: '}{count(shape.steps, 'step')} of "
        f"{count(shape.batch_size, 'row')} of {shape.row_tokens} tokens{parts}, "
        f"{rows:g} per {device} at a time; "
        f"compiled in {phase.compile_seconds:.0f} s"
    )
    return which or "The step", [line]


def _memory(phase: PhaseReport, target: Target) -> Section:
    """Returns whether a phase fits, and what would help if it does not."""
    memory, backend = phase.memory, backends.of(target)
    device = backend.device(target)
    limit = f" of {in_units(memory.limit)}" if memory.limit else ""
    fits = "fits" if memory.fits else "DOES NOT FIT"
    shown = {kind: amount for kind, amount in memory.kinds.items() if amount}
    if free := max(0, (memory.limit or 0) - memory.total):
        shown["free"] = free
    parts: list[Part] = [
        f"Memory per {device}: {in_units(memory.total)}{limit}, {fits}",
        Figure(functools.partial(stacked_bar, shown), f"Memory of one {device}"),
        Table(("", ""), [(k, in_units(n)) for k, n in memory.kinds.items() if n or memory.fits]),
        *backend.of_memory(target),
    ]
    if memory.limit and memory.fits and memory.total > memory.limit:
        at_once = f", at most {in_units(memory.peak)}" if memory.peak else ""
        parts.append(
            "The sum is above the limit, but the compiler accepts the program: the sum counts "
            f"temporaries that are not there at the same time{at_once}. Whether the step runs was "
            "not tried."
        )
    if memory.limit and not memory.fits:
        parts += [f"Over the limit by {in_units(memory.total - memory.limit)}."]
        parts += _remedies(phase, memory.limit)
    return Section("Memory", parts)


def _remedies(phase: PhaseReport, limit: int) -> Iterator[Part]:
    if not phase.remedies:
        yield "No change of micro_batches, remat or mesh helps: use more devices or fewer rows."
    elif all(remedy.needed > limit for remedy in phase.remedies):
        (combined,) = phase.remedies
        yield (
            f"Even {combined.flags} needs {in_units(combined.needed)} by estimate: use more "
            "devices or a smaller batch."
        )
    else:
        yield "Changes that should make it fit (estimates, not compiled):"
        rows = [(remedy.flags, in_units(remedy.needed)) for remedy in phase.remedies]
        yield Table(("flags", "needs"), rows)
