"""Optimizers by name, as optax transformations. Lines are of google-research/bert.

None of them knows the learning rate: the step applies params - rate·update, the rate being a
function of the run's step alone (schedule.py). So no counter of an optimizer can disagree with it.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.config.schema import OptimizerConfig
from bert_jax.ops.hashing import fold_key, hash32
from bert_jax.training import lamb


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


def keep_moments_in(dtype: str, adam: optax.GradientTransformation) -> optax.GradientTransformation:
    """Adam that keeps its moments in another type and computes in float32.

    In bfloat16 the first moment is rounded to nearest. The second is rounded up or down at random,
    in proportion: a step changes it by 1 - b2 of its distance to the squared gradient, for b2 of
    .999 less than half of what lies between two such numbers, and to nearest it would never fall.
    The draws are a function of (step, array, element), the same on every mesh.
    """
    if dtype == "float32":
        return adam

    def cast(tree: Any, to: str) -> Any:
        return jax.tree.map(lambda x: x.astype(to), tree)

    def init(params: Any) -> Any:
        state = adam.init(params)
        return state._replace(mu=cast(state.mu, dtype), nu=cast(state.nu, dtype))

    def update(
        gradients: Any, state: Any, params: Any = None, *, step: jax.Array | int = 0, **others: Any
    ) -> tuple[Any, Any]:
        del others
        wide = state._replace(mu=cast(state.mu, "float32"), nu=cast(state.nu, "float32"))
        updates, after = adam.update(gradients, wide, params)
        leaves, structure = jax.tree.flatten(after.nu)
        nu = [_round_at_random(x, fold_key(fold_key(step, i), 0)) for i, x in enumerate(leaves)]
        nu = jax.tree.unflatten(structure, nu)
        return updates, after._replace(mu=cast(after.mu, dtype), nu=nu)

    return optax.GradientTransformationExtraArgs(init, update)


def _round_at_random(x: jax.Array, key: jax.Array) -> jax.Array:
    """Float32 of fewer than 2**32 elements -> one of the two bfloat16 around each; the mean is x.

    Infinity stays what it is; NaN may not, but a step that has one is skipped.
    """
    index = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        index = index * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    below = hash32(index ^ key) >> 16  # bfloat16 is the upper half of float32
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) + below
    cut = jax.lax.bitcast_convert_type(bits & np.uint32(0xFFFF0000), jnp.float32)
    return cut.astype(jnp.bfloat16)


def decayed(params: Any) -> Any:
    """True for weights, which BERT decays: all but biases and LayerNorm (optimization.py:65)."""

    def leaf(path: tuple, _: Any) -> bool:
        names = {key.key for key in path}
        return not names & {"bias", "norm"}

    return jax.tree_util.tree_map_with_path(leaf, params)


def make_optimizer(config: OptimizerConfig, axes: Any) -> optax.GradientTransformationExtraArgs:
    """Clip by global norm, Adam, weight decay, LAMB's ratio: the update before the learning rate.

    Weight decay is decoupled and scaled by the rate: weight_decay·p is added to Adam's update.
    `weight_decay_on="all"` adds it for biases and LayerNorm too, as fairseq does, which has one
    group of parameters.

    `adamw` corrects the bias first and adds eps to the root after, as torch and apex's `FusedAdam`
    do, which fairseq takes on GPUs that have it. fairseq's own `optim/adam.py` adds eps before the
    correction, so that it is eps/√(1 - b2^t) here: 7 times eps in the first update with b2 = 0.98.
    apex's older contrib kernel multiplies decay by the correction as well.

    Args:
        axes: a tree like the parameters', with the name of each dimension in place of an array
            (`sharding.param_axes`). Only LAMB reads it.

    Returns:
        Its update takes the run's `step`, which only rounding at random needs.
    """
    variant = lamb.VARIANTS.get(config.name)
    corrected = variant.bias_correction if variant else config.name == "adamw"
    adam = optax.scale_by_adam if corrected else scale_by_bert_adam
    everything = functools.partial(jax.tree.map, lambda _: True)  # as a mask: one state for both
    on = decayed if config.weight_decay_on == "weights" else everything
    chain = optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        keep_moments_in(config.moment_dtype, adam(config.b1, config.b2, config.eps)),
        optax.add_decayed_weights(config.weight_decay, mask=on),
        lamb.scale_by_ratio(variant, axes, decayed) if variant else optax.identity(),
    )
    return optax.with_extra_args_support(chain)


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
