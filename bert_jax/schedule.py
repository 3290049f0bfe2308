"""The learning rate as a function of the step."""

import jax
import jax.numpy as jnp
import optax

from bert_jax.config import Config


def bert_polynomial(
    *, learning_rate: float, warmup_steps: int, total_steps: int, power: float = 1.0
) -> optax.Schedule:
    """The original's schedule to the letter (optimization.py:32-54 of google-research/bert).

    rate·(1 - step/total)^power from step 0 to zero at `total_steps`, replaced by rate·step/warmup
    below `warmup_steps`. So the first update has rate 0, and at the end of the warmup the rate
    falls from just under the peak to peak·(1 - warmup/total)^power. The original's power is 1; 0.5
    is NVIDIA's PolyWarmUpScheduler (`schedulers.py` of its PyTorch BERT), which counts updates from
    one instead of zero; 0 keeps the rate constant.

    A decay that begins after the warmup, at the peak (`optax.join_schedules`, transformers, fairseq
    and with it RoBERTa and SpanBERT), is another schedule.
    """

    def rate(step: jax.typing.ArrayLike) -> jax.Array:
        t = jnp.asarray(step, jnp.float32)
        decay = learning_rate * (jnp.maximum(total_steps - t, 0) / total_steps) ** power
        warmup = learning_rate * t / max(warmup_steps, 1)
        return jnp.where(t < warmup_steps, warmup, decay)

    return rate


def make_schedule(config: Config) -> optax.Schedule:
    """Updates done so far in the run -> learning rate of the next one, over all phases.

    One schedule over all steps (`schedule_over="run"`, as in the paper), or one for each phase,
    counted from its first step, with the phase's own peak and warmup where it gives them.
    """
    optimizer = config.optimizer
    if optimizer.schedule_over == "run":
        return bert_polynomial(
            learning_rate=optimizer.learning_rate,
            warmup_steps=optimizer.warmup_steps,
            total_steps=config.total_steps,
            power=optimizer.decay_power,
        )
    rates = [
        bert_polynomial(
            learning_rate=(
                optimizer.learning_rate if phase.learning_rate is None else phase.learning_rate
            ),
            warmup_steps=(
                optimizer.warmup_steps if phase.warmup_steps is None else phase.warmup_steps
            ),
            total_steps=phase.steps,
            power=optimizer.decay_power,
        )
        for phase in config.phases
    ]
    return optax.join_schedules(rates, config.phase_ends[:-1])
