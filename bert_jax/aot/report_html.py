"""Where memory and time of a step go, for `bert-jax compile --html`: pictures and tables."""

from bert_jax.aot import report_text
from bert_jax.aot.cost.analysis import Analysis
from bert_jax.aot.cost.memory import GIB
from bert_jax.aot.report import PhaseReport, Report
from bert_jax.reporting.html import Page
from bert_jax.reporting.plots import stacked_bar, stacked_bars

_DEAREST = 20  # lines, and operations, named


def save(report: Report, path: str) -> None:
    """One page, the phases one after the other."""
    page = Page(f"{report.name} on {report.of.name}")
    for line in (*report_text.heading(report), *report_text.render_all(report)):
        page.text(line)
    for phase in report.phases:
        page.heading(report_text.title(phase, report))
        _add_summary(page, phase, report)
        if phase.analysis:
            add_analysis(page, phase.analysis)
    page.save(path)


def _add_summary(page: Page, phase: PhaseReport, report: Report) -> None:
    """Whether it fits and how long it takes."""
    taken = phase.memory
    free = max(0, (taken.limit or 0) - taken.total)
    parts = taken.kinds | {"free": free}
    page.figure(
        stacked_bar({kind: amount for kind, amount in parts.items() if amount}),
        " ".join(report_text.verdict(phase, report.of)),
    )
    page.table(
        ("memory", "GiB"), [(kind, amount / GIB) for kind, amount in taken.kinds.items() if amount]
    )
    if phase.remedies:
        page.table(
            ("GiB, estimated", "with"), [(one.needed / GIB, one.flags) for one in phase.remedies]
        )
    if phase.step_seconds and phase.utilization:
        page.table(
            ("of the phase, estimated", ""),
            [
                ("ms of a step", 1e3 * phase.step_seconds),
                ("tokens/s, with padding", round(phase.tokens_per_second or 0)),
                ("of peak (MFU)", f"{phase.utilization:.1%}"),
                ("hours", phase.hours or 0.0),
                ("chip-hours", (phase.hours or 0.0) * report.of.chips),
            ],
        )


def add_analysis(page: Page, found: Analysis) -> None:
    """The estimate, a bar for each part of the model, and what costs most."""
    page.heading("Where the time goes")
    page.text(_summary(found))
    page.figure(
        stacked_bars(milliseconds(found), xlabel="ms of a step, estimated"),
        "A step on one device by part of the model",
    )
    page.heading("The dearest source lines")
    page.table(
        ("source line", "pass", "Mcycles", "of all", "operations"),
        [
            (
                line.source.line,
                line.source.direction,
                line.total / 1e6,
                f"{line.total / max(1, found.cycles):.1%}",
                line.runs,
            )
            for line in found.lines[:_DEAREST]
        ],
    )
    page.heading("The dearest operations")
    page.table(
        ("operation", "result", "source line", "pass", "Mcycles", "runs"),
        [
            (
                one.name,
                one.result,
                one.source.line,
                one.source.direction,
                one.total / 1e6,
                one.runs,
            )
            for one in found.operations[:_DEAREST]
        ],
    )
    _add_collectives(page, found)
    _add_unestimated(page, found)


def milliseconds(found: Analysis) -> dict[str, dict[str, float]]:
    """Parts of a step -> what they consist of -> ms; all together are the step."""
    cycle = 1e3 * found.compute_seconds / max(1, found.cycles)
    rows: dict[str, dict[str, float]] = {}
    for share in found.shares:
        rows.setdefault(share.part, {})[share.direction] = share.total * cycle
    if found.unestimated_seconds:
        rows["not estimated"] = {"at least": 1e3 * found.unestimated_seconds}
    if found.exposed_seconds:
        rows["collectives"] = {"at least": 1e3 * found.exposed_seconds}
    return rows


def _summary(found: Analysis) -> str:
    step = "unknown" if found.step_seconds is None else f"{1e3 * found.step_seconds:.2f} ms"
    waits = (
        "the bandwidth between devices is not known"
        if found.exposed_seconds is None
        else f"{1e3 * found.exposed_seconds:.2f} ms waiting for collectives"
    )
    return (
        f"One step: {step}, nothing of it measured. {1e3 * found.compute_seconds:.2f} ms are the "
        f"{found.cycles / 1e6:,.1f} million cycles that the compiler estimates; at least "
        f"{1e3 * found.unestimated_seconds:.2f} ms are what it gives no cycles for, and {waits}, "
        "both at the full bandwidth of memory and links."
    )


def _add_collectives(page: Page, found: Analysis) -> None:
    if not found.collectives:
        return
    page.heading("Collectives")
    page.table(
        ("kind", "over", "devices", "network", "beside computation", "runs", "MiB", "ms at least"),
        [
            (
                one.kind,
                ", ".join(one.axes) + (" (partly)" if one.partly else ""),
                one.devices,
                one.network.upper(),
                "yes" if one.beside else "no",
                one.runs,
                one.bytes / 2**20,
                "unknown" if one.seconds is None else 1e3 * one.seconds,
            )
            for one in found.collectives
        ],
    )


def _add_unestimated(page: Page, found: Analysis) -> None:
    if not found.unestimated:
        return
    page.heading("What the compiler gives no cycles for")
    page.table(
        ("kind", "runs", "MiB", "GFLOP", "ms at least"),
        [
            (one.kind, one.runs, one.bytes / 2**20, one.flops / 1e9, 1e3 * one.seconds)
            for one in found.unestimated
        ],
    )
    page.text(
        f"Besides, {found.copies.runs:,} copies move {found.copies.bytes / 2**20:,.0f} MiB between "
        "HBM and the chip's memory while others compute."
    )
