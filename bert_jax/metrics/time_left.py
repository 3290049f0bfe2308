"""The time that a run still takes; needs no JAX."""

from collections.abc import Sequence

from bert_jax.config.schema import Config
from bert_jax.runtime.console import clock


def seconds_left(
    config: Config, step: int, step_seconds: float, step_flops: Sequence[float]
) -> float:
    """The time that a run takes after `step` updates, the last of which took `step_seconds`, if all
    phases run at the same number of operations a second; `step_flops`: of a step of each phase."""
    if step >= config.total_steps:
        return 0.0
    now, _ = config.phase_at(max(step - 1, 0))
    index, local = config.phase_at(step)
    work = -local * step_flops[index]
    work += sum(config.phases[i].steps * step_flops[i] for i in range(index, len(config.phases)))
    return step_seconds * work / step_flops[now]


def against_budget(wall: float, budget: float) -> str:
    """Text: by how much a run that finished `wall` seconds after its start missed its budget."""
    missed, side = abs(wall - budget), "before" if wall <= budget else "after"
    return f"finished {clock(wall)} after the start, {clock(missed)} {side} the time budget"
