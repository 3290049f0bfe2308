"""The learning rate as a function of the step: schedules by name.

A schedule is built from the span of steps that it covers. To add one, write a function and list it
in `SCHEDULES`.
"""

from collections.abc import Callable
from typing import Final

import jax
import jax.numpy as jnp
import optax

from bert_jax.config.optimizer_settings import ScheduleName, ScheduleSpan
from bert_jax.config.schema import Config

MakeSchedule = Callable[[ScheduleSpan], optax.Schedule]  # updates done -> the next one's rate


def bert_polynomial(span: ScheduleSpan) -> optax.Schedule:
    """The original's exact schedule (optimization.py:32-54 of google-research/bert).

    rate·(1 - step/total)^power from step 0 to zero at `span.steps`, replaced by rate·step/warmup
    below `warmup_steps`. So the first update has rate 0, and at the end of the warmup the rate
    drops from just under the peak to peak·(1 - warmup/total)^power. The original's power is 1; 0.5
    is NVIDIA's PolyWarmUpScheduler (`schedulers.py` of its PyTorch BERT), which counts updates from
    one instead of zero; 0 keeps the rate constant.

    The original reads and increments its step counter in no defined order, so its rate may be one
    step ahead.
    """

    def rate(step: jax.typing.ArrayLike) -> jax.Array:
        t = jnp.asarray(step, jnp.float32)
        left = jnp.maximum(span.steps - t, 0) / span.steps
        decay = span.learning_rate * left**span.decay_power
        return jnp.where(t < span.warmup_steps, _warmup(span, t), decay)

    return rate


def fairseq_polynomial(span: ScheduleSpan) -> optax.Schedule:
    """The schedule of RoBERTa and SpanBERT: the decay begins at the peak, where the warmup ends.

    `optim/lr_scheduler/polynomial_decay_schedule.py` of fairseq at 3d262bb, `step_update`:
    rate·step/warmup up to and including `warmup_steps`, then
    rate·(1 - (step - warmup)/(total - warmup))^power, and 0 from `span.steps` on. The step is
    the number of updates done (`trainer.py` calls `step_update(0)` before the first update and
    `step_update(n)` after the n-th), so the first update has rate 0.

    Two quirks of SpanBERT's older copy of `trainer.py` and `train.py` are not reproduced: its first
    update has the rate of its second (the rate of step 0 is never set), and the first update of
    every epoch after the warmup has the peak rate.
    """

    def rate(step: jax.typing.ArrayLike) -> jax.Array:
        t = jnp.asarray(step, jnp.float32)
        left = jnp.maximum(span.steps - t, 0) / max(span.steps - span.warmup_steps, 1)
        decay = jnp.where(t < span.steps, span.learning_rate * left**span.decay_power, 0)
        is_warmup = (t <= span.warmup_steps) & (span.warmup_steps > 0)
        return jnp.where(is_warmup, _warmup(span, t), decay)

    return rate


def warmup_stable_decay(span: ScheduleSpan) -> optax.Schedule:
    """Warmup, a stable rate, and a decay to zero in the last `decay_steps` (MiniCPM's WSD).

    Hu et al. 2024 (arXiv 2404.06395, section 4.2): rate·step/warmup below `warmup_steps`, then the
    peak, then a decay over about a tenth of the steps, here
    rate·((total - step)/decay_steps)^power, so that a power of 1 is linear as in Hägele et al. 2024
    (arXiv 2405.18392); MiniCPM's own decay is exponential. 0 from `span.steps` on.
    """

    def rate(step: jax.typing.ArrayLike) -> jax.Array:
        t = jnp.asarray(step, jnp.float32)
        left = jnp.clip((span.steps - t) / max(span.decay_steps, 1), 0, 1)
        stable_or_decay = jnp.where(t < span.steps, span.learning_rate * left**span.decay_power, 0)
        return jnp.where(t < span.warmup_steps, _warmup(span, t), stable_or_decay)

    return rate


def trapezoid(span: ScheduleSpan) -> optax.Schedule:
    """`warmup_stable_decay` with ModernBERT's decay, rate·(1 - √(share of the decay done)).

    `one_minus_sqrt` of AnswerDotAI/ModernBERT; Hägele et al. 2024 (arXiv 2405.18392, section 4)
    find it better than a linear decay. `decay_power` has no effect.
    """

    def rate(step: jax.typing.ArrayLike) -> jax.Array:
        t = jnp.asarray(step, jnp.float32)
        left = jnp.clip((span.steps - t) / max(span.decay_steps, 1), 0, 1)
        stable_or_decay = span.learning_rate * (1 - jnp.sqrt(1 - left))
        return jnp.where(t < span.warmup_steps, _warmup(span, t), stable_or_decay)

    return rate


def _warmup(span: ScheduleSpan, t: jax.Array) -> jax.Array:
    return span.learning_rate * t / max(span.warmup_steps, 1)


SCHEDULES: Final[dict[ScheduleName, MakeSchedule]] = {
    "bert": bert_polynomial,
    "fairseq": fairseq_polynomial,
    "wsd": warmup_stable_decay,
    "trapezoid": trapezoid,
}


def make_schedule(config: Config) -> optax.Schedule:
    """Returns the learning rate of the next update as a function of the updates done in the run.

    One schedule over all steps (`schedule_over="run"`, as in the paper), or one per phase, counted
    from the phase's first step, with the phase's own peak and warmup if set.
    """
    make = SCHEDULES[config.optimizer.schedule]
    rates = [make(span) for span in config.schedule_spans]
    return optax.join_schedules(rates, config.phase_ends[: len(rates) - 1])
