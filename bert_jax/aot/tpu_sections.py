"""Sections of `bert-jax compile`'s report that only TPUs have: estimated cycles, and of what."""

import functools
from collections.abc import Iterator

from bert_jax.aot.cost.analysis import Analysis
from bert_jax.aot.hlo.sources import code
from bert_jax.aot.report_data import PhaseReport
from bert_jax.aot.report_parts import collectives_of, ms
from bert_jax.reporting.plots import stacked_bars
from bert_jax.reporting.sections import Figure, Section, Table

_TOP = 20  # source lines and operations listed
_TOP_IN_TEXT = 12
_MIN_SECONDS = 5e-6  # kinds that round to 0.00 ms are not named in the text


def of_phase(phase: PhaseReport, cost: Analysis, chips: int) -> Iterator[Section]:
    """Yields the time of a step and of all steps, and where it goes. chips: of all slices."""
    yield _time(phase, cost)
    whole = f"This phase: {run_time(phase.hours, chips)}."
    yield Section("Time of all steps", [whole], in_text=False)
    yield from of_analysis(cost)


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


def run_time(hours: float | None, chips: int) -> str:
    """Formats hours on chips, short times in seconds."""
    if hours is None:
        return "time unknown"
    chip_hours = hours * chips
    time = f"{hours:,.2f} hours" if hours >= 0.1 else f"{3600 * hours:,.1f} s"
    return (
        f"{time}, {chip_hours:,{'.0f' if chip_hours >= 10 else '.2g'}} chip-hours; "
        "estimated, without evaluation, checkpoints and startup"
    )


def _share(cycles: int, cost: Analysis) -> str:
    """Formats a share of all cycles, "" for 0."""
    return f"{cycles / max(cost.cycles, 1):.1%}" if cycles else ""
