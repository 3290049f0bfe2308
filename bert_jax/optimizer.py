"""Optimizers by name, as optax transformations. Lines are of google-research/bert.

None of them knows the learning rate: the step applies params - rate·update, the rate being a
function of the run's step alone (schedule.py). So no counter of an optimizer can disagree with it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax import lamb
from bert_jax.config import OptimizerConfig


class Moments(NamedTuple):
    mu: Any
    nu: Any


def scale_by_bert_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Adam without bias correction, eps outside the root: optimization.py:131-140.

    `optax.scale_by_adam` always corrects the bias, which makes the first updates about three times
    smaller for b1 = 0.9, b2 = 0.999.
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


def decayed(params: Any) -> Any:
    """True where weight decay applies: all but biases and LayerNorm (optimization.py:65)."""

    def leaf(path: tuple, _: Any) -> bool:
        names = {key.key for key in path}
        return not names & {"bias", "norm"}

    return jax.tree_util.tree_map_with_path(leaf, params)


def make_optimizer(config: OptimizerConfig, axes: Any) -> optax.GradientTransformation:
    """Clip by global norm, Adam, weight decay, LAMB's ratio: the update before the learning rate.

    Args:
        axes: a tree like the parameters', with the name of each dimension in place of an array
            (`sharding.param_axes`). Only LAMB reads it.
    """
    variant = lamb.VARIANTS.get(config.name)
    corrected = variant.bias_correction if variant else config.name == "adamw"
    adam = optax.scale_by_adam if corrected else scale_by_bert_adam
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        adam(config.b1, config.b2, config.eps),
        optax.add_decayed_weights(config.weight_decay, mask=decayed),
        lamb.scale_by_ratio(variant, axes, decayed) if variant else optax.identity(),
    )


def start_phase(opt_state: Any, config: OptimizerConfig) -> Any:
    """The optimizer's state as a phase after the first finds it; same structure, types and shapes.

    `phase_moments="reset"` sets both moments to zero, `phase_count="reset"` the number of updates
    that the bias correction counts (optimizers without a correction have none). The published runs:
    google-research/bert starts its second phase from the parameters alone (reset, reset), NVIDIA's
    keeps the moments and counts from zero (carry, reset).
    """
    zero = ("mu", "nu") * (config.phase_moments == "reset")
    zero += ("count",) * (config.phase_count == "reset")

    def is_adam(part: Any) -> bool:
        return isinstance(part, Moments | optax.ScaleByAdamState)

    def restarted(part: Any) -> Any:
        if not is_adam(part):
            return part
        fields = set(zero) & set(part._fields)
        return part._replace(
            **{name: jax.tree.map(jnp.zeros_like, getattr(part, name)) for name in fields}
        )

    return jax.tree.map(restarted, opt_state, is_leaf=is_adam)
