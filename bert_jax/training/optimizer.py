"""Optimizers by name, as optax transformations. Lines are of google-research/bert.

None of them knows the learning rate: the step applies params - rate·update, the rate being a
function of the run's step alone (schedule.py). So no counter of an optimizer can disagree with it.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.config.schema import OptimizerConfig
from bert_jax.training import lamb
from bert_jax.training.adam import Moments, keep_moments_in, scale_by_bert_adam


def weight_decay_mask(params: Any) -> Any:
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
    on = weight_decay_mask if config.weight_decay_on == "weights" else everything
    chain = optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        keep_moments_in(config.moment_dtype, adam(config.b1, config.b2, config.eps)),
        optax.add_decayed_weights(config.weight_decay, mask=on),
        lamb.scale_by_ratio(variant, axes, weight_decay_mask) if variant else optax.identity(),
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
