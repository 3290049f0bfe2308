"""Optimizers by name, as optax transformations. Lines are of google-research/bert."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax.config import OptimizerConfig
from bert_jax.schedule import bert_linear


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


def make_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    return bert_linear(
        learning_rate=config.learning_rate,
        warmup_steps=config.warmup_steps,
        total_steps=total_steps,
    )


def make_optimizer(config: OptimizerConfig, total_steps: int) -> optax.GradientTransformation:
    """Clip by global norm, Adam, weight decay scaled by the learning rate, descend."""
    adam = {"bert_adamw": scale_by_bert_adam, "adamw": optax.scale_by_adam}[config.name]
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        adam(config.b1, config.b2, config.eps),
        optax.add_decayed_weights(config.weight_decay, mask=decayed),
        optax.scale_by_learning_rate(make_schedule(config, total_steps)),
    )
