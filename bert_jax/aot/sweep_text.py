"""The text and JSON that `bert-jax compile --sweep` prints."""

import textwrap
from collections.abc import Iterator
from typing import Any

from bert_jax.aot import backends
from bert_jax.aot.backend import Backend
from bert_jax.aot.cost.memory import GIB
from bert_jax.aot.memory_advice import flags
from bert_jax.aot.sweep_results import Sweep, Trial
from bert_jax.hardware.targets import Target
from bert_jax.runtime.console import clock, table

_UNCHANGED = "(unchanged)"
_COLUMNS = 100


def render(sweep: Sweep, name: str, target: Target) -> str:
    return "\n".join(_lines(sweep, name, target))


def _lines(sweep: Sweep, name: str, target: Target) -> Iterator[str]:
    backend: Backend[Any] = backends.of(target)
    head = (
        f"{name} on {target.name}: {len(sweep.tried)} candidates in {clock(sweep.seconds)}, "
        f"compiled by {backend.compiler()}; nothing ran. {backend.ranking}; "
        "memory is what the compiler allocates. Tokens include padding."
    )
    yield textwrap.fill(head, _COLUMNS, break_long_words=False, break_on_hyphens=False)
    if sweep.ranked:
        header: tuple[str, ...] = ("tokens/s", "hours", "GiB", "compile", "flags")
        rows = [_row(trial) for trial in sweep.ranked]
        if not backend.estimates:  # a lower bound of the time gives no hours
            header, rows = ("at most", *header[2:]), [(row[0], *row[2:]) for row in rows]
        yield from ("", table(header, rows))
    if sweep.refused:
        rows = [(trial.flags or _UNCHANGED, trial.refusal or "") for trial in sweep.refused]
        yield "\nRuled out:"
        yield from (f"  {candidate}: {reason}" for candidate, reason in rows)
    if sweep.left:
        yield f"\nNot tried within --sweep_minutes ({len(sweep.left)}):"
        yield from (f"  {flags(changes)}" for changes in sweep.left)
    yield f"\n{_verdict(sweep, backend)}"
    if sweep.unrolled and sweep.best:
        yield _unrolled(sweep.unrolled, sweep.best)
    elif sweep.in_loop and sweep.best:
        yield "With its layers unrolled it was not compiled within --sweep_minutes."


def _unrolled(unrolled: Trial, best: Trial) -> str:
    """Returns a line on the best with its layers unrolled."""
    if not unrolled.phases:
        return f"With its layers unrolled it could not be compiled: {unrolled.refusal}."
    difference = (unrolled.needed - best.needed) / GIB
    fits = unrolled.refusal or "fits"
    seconds = sum(phase.compile_seconds for phase in unrolled.phases)
    return (
        f"With its layers unrolled it needs {unrolled.needed / GIB:,.2f} GiB, {difference:+,.2f} "
        f"GiB ({fits}; compiled in {seconds:,.0f} s)."
    )


def _row(trial: Trial) -> tuple[str, ...]:
    return (
        f"{trial.tokens_per_second or 0:,.0f}",
        f"{(trial.seconds or 0) / 3600:,.2f}",
        f"{trial.needed / GIB:,.2f}",
        f"{sum(phase.compile_seconds for phase in trial.phases):,.0f} s",
        trial.flags or _UNCHANGED,
    )


def _verdict(sweep: Sweep, backend: Backend[Any]) -> str:
    tried = " of those tried" if sweep.left else ""
    if sweep.chosen is None:
        return f"No candidate{tried} fits: use more devices or fewer rows."
    if not sweep.chosen:
        return f"No candidate{tried} is faster than the unchanged config."
    how = "by estimate" if backend.estimates else "by the lower bounds"
    return f"The fastest{tried} that fits, {how}:\n  {flags(sweep.chosen)}"


def as_dict(sweep: Sweep, name: str, target: Target) -> dict[str, Any]:
    """Returns the sweep as JSON-serializable values, fastest first; bytes are per device."""
    others = [trial for trial in sweep.tried if trial not in sweep.ranked]
    backend = backends.of(target)
    return {
        "config": name,
        "topology": target.name,
        "compiler": backend.compiler(),
        **backend.versions(backend.compiler()),
        "seconds": sweep.seconds,
        "best": sweep.best and flags(sweep.chosen or {}),
        "tried": [_tried(trial, backend) for trial in (*sweep.ranked, *others)],
        **({"in_a_loop": dict(sweep.in_loop)} if sweep.in_loop else {}),
        **({"unrolled": _tried(sweep.unrolled, backend)} if sweep.unrolled else {}),
        "not_tried": [dict(changes) for changes in sweep.left],
    }


def _tried(trial: Trial, backend: Backend[Any]) -> dict[str, Any]:
    times: dict[str, Any] = {"at_most_tokens_per_second": trial.tokens_per_second}
    if backend.estimates:
        times = {
            "estimated_step_seconds": [phase.step_seconds for phase in trial.phases],
            "estimated_tokens_per_second": trial.tokens_per_second,
        }
    return {
        "changes": dict(trial.changes),
        "refusal": trial.refusal,
        "bytes": trial.needed or None,
        "compile_seconds": sum(phase.compile_seconds for phase in trial.phases),
        **times,
    }
