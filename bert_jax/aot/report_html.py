"""The page of `bert-jax compile --html`: plots and tables of a step's memory and time."""

from bert_jax.aot import report_text
from bert_jax.aot.cost.analysis import Analysis
from bert_jax.aot.hlo.sources import code
from bert_jax.aot.report import PhaseReport, Report
from bert_jax.reporting.html import Page
from bert_jax.reporting.plots import stacked_bar, stacked_bars
from bert_jax.reporting.run_facts import model_facts, now
from bert_jax.runtime.versions import version
from bert_jax.storage.host_name import host_name

_TOP = 20  # source lines and operations listed


def save(report: Report, path: str, words: str) -> None:
    """Writes the page with a section for each phase; words: that give the config to a command."""
    config = report.config
    page = Page(f"{report.name} compiled for {report.tpu_slice.name}")
    settings, compute, note = report_text.heading(report)
    seconds = sum(phase.compile_seconds for phase in report.phases)
    page.facts(
        {
            "config": words,
            "slice": settings,
            "model": model_facts(config),
            "compute": compute,
            "compiled": f"{now()}, in {seconds:.0f} s, on {host_name()}",
            "software": f"libtpu {report.libtpu}, bert-jax {version('bert-jax')}",
            "estimate": " ".join(report_text.render_all(report)),
        }
    )
    page.text(note)
    if report.fits:
        page.commands([("Train on the slice:", launch_command(report, words))])
    for phase in report.phases:
        page.heading(report_text.title(phase, report))
        _add_summary(page, phase, report)
        if phase.analysis:
            add_analysis(page, phase.analysis)
    page.save(path)


def launch_command(report: Report, words: str) -> str:
    """Returns the command that trains on the slice of a report; words: that give the config."""
    backend, place = "tpu", "--zone=…"
    if report.tpu_slice.generation.name == "tpu7x":  # not available as a queued resource
        backend, place = "gke", "--image=…"
    return (
        f"bert-jax launch {backend} run --name=… --topology={report.tpu_slice.name} {place} "
        f"pretrain {words} --config.data.store=gs://… --workdir=gs://…"
    )


def _add_summary(page: Page, phase: PhaseReport, report: Report) -> None:
    """Adds a phase's memory, throughput and time."""
    memory = phase.memory
    free = max(0, (memory.limit or 0) - memory.total)
    parts = memory.kinds | {"free": free}
    page.figure(
        stacked_bar({kind: amount for kind, amount in parts.items() if amount}),
        " ".join(report_text.verdict(phase, report.tpu_slice)),
    )
    page.table(
        ("memory", ""),
        [(kind, report_text.in_bytes(amount)) for kind, amount in memory.kinds.items() if amount],
    )
    if phase.remedies:
        page.table(
            ("needed, estimated", "flags"),
            [(report_text.in_bytes(remedy.needed), remedy.flags) for remedy in phase.remedies],
        )
    if phase.step_seconds and phase.utilization:
        page.table(
            ("estimate", ""),
            [
                ("ms per step", 1e3 * phase.step_seconds),
                ("tokens/s, padding included", round(phase.tokens_per_second or 0)),
                ("MFU", f"{phase.utilization:.1%}"),
                ("time", report_text.duration(phase.hours or 0.0)),
                ("chip-hours", (phase.hours or 0.0) * report.tpu_slice.chips),
            ],
        )


def add_analysis(page: Page, cost: Analysis) -> None:
    """Adds the time estimate by part of the model, and the most expensive lines and operations."""
    page.heading("Where the time goes")
    page.text(_summary(cost))
    page.figure(
        stacked_bars(milliseconds(cost), xlabel="estimated ms per step"),
        "One step on one device, by part of the model",
    )
    page.heading("Most expensive source lines")
    page.table(
        ("source line", "its text", "pass", "Mcycles", "share", "runs"),
        [
            (
                line.source.line,
                code(line.source.line),
                line.source.direction,
                line.total / 1e6,
                f"{line.total / max(1, cost.cycles):.1%}",
                line.runs,
            )
            for line in cost.lines[:_TOP]
        ],
    )
    page.heading("Most expensive operations")
    page.text("A fusion is several operations that the compiler runs as one.")
    page.table(
        ("operation", "result", "source line", "pass", "Mcycles", "runs"),
        [
            (op.name, op.result, op.source.line, op.source.direction, op.total / 1e6, op.runs)
            for op in cost.operations[:_TOP]
        ],
    )
    _add_collectives(page, cost)
    _add_unestimated(page, cost)


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


def _summary(cost: Analysis) -> str:
    step = "unknown" if cost.step_seconds is None else f"{1e3 * cost.step_seconds:.2f} ms"
    waits = (
        "the bandwidth between devices is unknown"
        if cost.exposed_seconds is None
        else f"{1e3 * cost.exposed_seconds:.2f} ms waiting for collectives"
    )
    return (
        f"One step: {step}, estimated, not measured. The compiler estimates "
        f"{cost.cycles / 1e6:,.1f} million cycles, {1e3 * cost.compute_seconds:.2f} ms. "
        "Operations without a cycle estimate take at least "
        f"{1e3 * cost.unestimated_seconds:.2f} ms, and {waits}: lower bounds at the full "
        "bandwidth of memory and links."
    )


def _add_collectives(page: Page, cost: Analysis) -> None:
    if not cost.collectives:
        return
    page.heading("Collectives")
    page.table(
        ("kind", "mesh axes", "devices", "network", "overlapped", "runs", "MiB", "min. ms"),
        [
            (
                traffic.kind,
                ", ".join(traffic.axes) + (" (partial)" if traffic.partly else ""),
                traffic.devices,
                traffic.network.upper(),
                "yes" if traffic.overlapped else "no",
                traffic.runs,
                traffic.bytes / 2**20,
                "unknown" if traffic.seconds is None else 1e3 * traffic.seconds,
            )
            for traffic in cost.collectives
        ],
    )


def _add_unestimated(page: Page, cost: Analysis) -> None:
    if not cost.unestimated:
        return
    page.heading("Operations without a cycle estimate")
    page.table(
        ("kind", "runs", "MiB", "GFLOP", "min. ms"),
        [
            (total.kind, total.runs, total.bytes / 2**20, total.flops / 1e9, 1e3 * total.seconds)
            for total in cost.unestimated
        ],
    )
    page.text(
        f"In addition, {cost.copies.runs:,} asynchronous copies move "
        f"{cost.copies.bytes / 2**20:,.0f} MiB between HBM and on-chip memory during computation."
    )
