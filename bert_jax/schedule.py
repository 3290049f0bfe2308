"""The learning rate as a function of the step."""

import jax
import jax.numpy as jnp
import optax


def bert_linear(*, learning_rate: float, warmup_steps: int, total_steps: int) -> optax.Schedule:
    """The original's schedule to the letter (optimization.py:32-54 of google-research/bert).

    Linear decay from step 0 to zero at `total_steps`, replaced by rate·step/warmup below
    `warmup_steps`. So the first update has rate 0, and at the end of the warmup the rate falls from
    just under the peak to peak·(1 - warmup/total). `optax.join_schedules` with a decay that begins
    after the warmup is another schedule.
    """

    def rate(step: jax.typing.ArrayLike) -> jax.Array:
        t = jnp.asarray(step, jnp.float32)
        decay = learning_rate * (jnp.maximum(total_steps - t, 0) / total_steps)
        warmup = learning_rate * t / max(warmup_steps, 1)
        return jnp.where(t < warmup_steps, warmup, decay)

    return rate
