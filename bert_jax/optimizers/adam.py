"""BERT's Adam, without bias correction, and Loshchilov and Hutter's.

`adamw` applies the bias correction before it adds eps to the root, as torch and apex's `FusedAdam`
do; fairseq uses the latter on GPUs where it is installed. fairseq's own `optim/adam.py` adds eps
before the correction, which corresponds to eps/√(1 - b2^t) here: 7 times eps in the first update
with b2 = 0.98. apex's older contrib kernel multiplies the decay by the correction as well.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax.optimizers.optimizer import Optimizer


class Moments(NamedTuple):
    """First and second moments, trees like the parameters'."""

    mu: Any
    nu: Any


def scale_by_bert_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Returns Adam without bias correction, eps outside the root: optimization.py:131-140.

    `optax.scale_by_adam` always applies bias correction, which makes the first updates about three
    times smaller for b1 = 0.9, b2 = 0.999.
    """

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return Moments(zeros, zeros)

    def update(gradients, state, params=None):
        del params
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, gradients)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, gradients)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu), Moments(mu, nu)

    return optax.GradientTransformation(init, update)


def _adam(bias_correction: bool) -> Optimizer:
    scale_by_adam = optax.scale_by_adam if bias_correction else scale_by_bert_adam
    return Optimizer(
        make=lambda config, axes, storage: scale_by_adam(config.b1, config.b2, config.eps),
        moments=("mu", "nu"),
        rounded_at_random=("nu",),
        counts=("count",) * bias_correction,
    )


BERT_ADAMW, ADAMW = (_adam(bias_correction) for bias_correction in (False, True))
