"""The text and JSON that `bert-jax compile --sweep` prints."""

from collections.abc import Iterator
from typing import Any

from bert_jax.aot import topology
from bert_jax.aot.cost.memory import GIB
from bert_jax.aot.sweep import Sweep, Trial, flags
from bert_jax.hardware.slices import Slice
from bert_jax.runtime.console import clock, table

_UNCHANGED = "(unchanged)"


def render(sweep: Sweep, name: str, target: Slice) -> str:
    return "\n".join(_lines(sweep, name, target))


def _lines(sweep: Sweep, name: str, target: Slice) -> Iterator[str]:
    yield (
        f"{name} on {target.name}: {len(sweep.tried)} candidates in {clock(sweep.seconds)}, "
        f"compiled by libtpu {topology.version()}; nothing ran. Times\nand their order are "
        "estimates; memory is what the compiler allocates. Tokens include padding."
    )
    if sweep.ranked:
        header = ("tokens/s", "hours", "GiB", "compile", "flags")
        yield from ("", table(header, [_row(trial) for trial in sweep.ranked]))
    if sweep.refused:
        rows = [(trial.flags or _UNCHANGED, trial.refusal or "") for trial in sweep.refused]
        yield "\nRuled out:"
        yield from (f"  {candidate}: {reason}" for candidate, reason in rows)
    if sweep.left:
        yield f"\nNot tried within --sweep_minutes ({len(sweep.left)}):"
        yield from (f"  {flags(changes)}" for changes in sweep.left)
    yield f"\n{_verdict(sweep)}"


def _row(trial: Trial) -> tuple[str, ...]:
    return (
        f"{trial.tokens_per_second or 0:,.0f}",
        f"{(trial.seconds or 0) / 3600:,.2f}",
        f"{trial.needed / GIB:,.2f}",
        f"{sum(phase.compile_seconds for phase in trial.phases):,.0f} s",
        trial.flags or _UNCHANGED,
    )


def _verdict(sweep: Sweep) -> str:
    if sweep.best is None:
        return "No candidate fits: use more chips or fewer rows."
    if not sweep.best.changes:
        return "No candidate is faster than the unchanged config."
    return f"The fastest that fits, by estimate:\n  {sweep.best.flags}"


def as_dict(sweep: Sweep, name: str, target: Slice) -> dict[str, Any]:
    """Returns the sweep as JSON-serializable values, fastest first; bytes are per device."""
    others = [trial for trial in sweep.tried if trial not in sweep.ranked]
    return {
        "config": name,
        "topology": target.name,
        "libtpu": topology.version(),
        "seconds": sweep.seconds,
        "best": sweep.best and sweep.best.flags,
        "tried": [_tried(trial) for trial in (*sweep.ranked, *others)],
        "not_tried": [dict(changes) for changes in sweep.left],
    }


def _tried(trial: Trial) -> dict[str, Any]:
    return {
        "changes": dict(trial.changes),
        "refusal": trial.refusal,
        "bytes": trial.needed or None,
        "compile_seconds": sum(phase.compile_seconds for phase in trial.phases),
        "estimated_step_seconds": [phase.step_seconds for phase in trial.phases],
        "estimated_tokens_per_second": trial.tokens_per_second,
    }
