"""Optimizers by name, as optax transformations. Line numbers refer to google-research/bert.

The optimizers do not apply the learning rate: the step computes params - rate·update, and the rate
is a function of the run's step alone (schedule.py). So no optimizer counter can disagree with it.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.config.schema import Config, OptimizerConfig
from bert_jax.config.task_model import probe_of
from bert_jax.optimizers import lamb, layer_decay, muon
from bert_jax.optimizers.adam import Moments, keep_moments_in, scale_by_bert_adam
from bert_jax.parallel.partition import is_names


def weight_decay_mask(params: Any) -> Any:
    """Returns True for all parameters but biases and LayerNorm, as in optimization.py:65."""

    def leaf(path: tuple, _: Any) -> bool:
        names = {key.key for key in path}
        return not names & {"bias", "norm"}

    return jax.tree_util.tree_map_with_path(leaf, params)


def optimizer_of(
    config: Config, axes: Any, storage: Any | None = None
) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer of a run, see `make_optimizer`. Of a frozen encoder it changes the head
    alone, and only the head has moments; Muon, whose matrices are the encoder's, is Adam then."""
    if probe_of(config.model) is None:
        return make_optimizer(config.optimizer, axes, storage)
    settings = config.optimizer
    if settings.name == "muon":
        settings = dataclasses.replace(settings, name="adamw")

    parts = jax.tree_util.tree_map_with_path(
        lambda path, _: "encoder" if path[0].key == "encoder" else "head", axes, is_leaf=is_names
    )
    of_head = jax.tree.map(
        lambda part, names: names if part == "head" else optax.MaskedNode(), parts, axes
    )
    head = make_optimizer(settings, of_head)
    return optax.partition({"head": head, "encoder": optax.set_to_zero()}, parts)


def make_optimizer(
    config: OptimizerConfig, axes: Any, storage: Any | None = None
) -> optax.GradientTransformationExtraArgs:
    """Returns a chain of global-norm clipping, Adam or Muon, weight decay, LAMB's trust ratio and
    layer-wise rates.

    Its updates are not yet scaled by the learning rate. Weight decay is decoupled and scaled by the
    rate: weight_decay·p is added to Adam's update. `weight_decay_on="all"` decays biases and
    LayerNorm too, as fairseq does with its single parameter group.

    `adamw` applies the bias correction before it adds eps to the root, as torch and apex's
    `FusedAdam` do; fairseq uses the latter on GPUs where it is installed. fairseq's own
    `optim/adam.py` adds eps before the correction, which corresponds to eps/√(1 - b2^t) here: 7
    times eps in the first update with b2 = 0.98. apex's older contrib kernel multiplies the decay
    by the correction as well.

    Args:
        axes: a tree like the parameters', with a tuple of dimension names for each array
            (`partition.param_axes`). Only LAMB, Muon and layer-wise rates read it.
        storage: a tree of NamedShardings of parameters and moments, which Muon needs on several
            devices.

    Returns:
        A transformation whose update takes the run's `step`, used only for stochastic rounding.
    """
    variant = lamb.VARIANTS.get(config.name)
    corrected = variant.bias_correction if variant else config.name != "bert_adamw"
    scale_by_adam = optax.scale_by_adam if corrected else scale_by_bert_adam
    scale = keep_moments_in(config.moment_dtype, scale_by_adam(config.b1, config.b2, config.eps))
    if config.name == "muon":
        scale = muon.for_matrices_of_layers(config, axes, storage, otherwise=scale)
    everything = functools.partial(
        jax.tree.map, lambda _: True
    )  # a mask too, so that both have the same state
    on = weight_decay_mask if config.weight_decay_on == "weights" else everything
    chain = optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        scale,
        optax.add_decayed_weights(config.weight_decay, mask=on),
        lamb.scale_by_ratio(variant, axes, weight_decay_mask) if variant else optax.identity(),
        *([layer_decay.scale_by_layer(config.layer_decay, axes)] * (config.layer_decay < 1)),
    )
    return optax.with_extra_args_support(chain)


def reset_for_phase(opt_state: Any, config: OptimizerConfig) -> Any:
    """Returns the optimizer state at the start of a later phase; same structure, dtypes and shapes.

    `phase_moments="reset"` sets both moments and Muon's momentum to zero, `phase_count="reset"` the
    update count of the bias correction (optimizers without bias correction have none). Published
    runs: google-research/bert starts its second phase from the parameters alone (reset, reset);
    NVIDIA's keeps the moments and resets the count (carry, reset).
    """
    reset = ("mu", "nu", "trace") * (config.phase_moments == "reset")
    reset += ("count",) * (config.phase_count == "reset")

    def has_moments(part: Any) -> bool:
        return isinstance(part, Moments | optax.ScaleByAdamState | optax.TraceState)

    def restarted(part: Any) -> Any:
        if not has_moments(part):
            return part
        fields = set(reset) & set(part._fields)
        return part._replace(
            **{name: jax.tree.map(jnp.zeros_like, getattr(part, name)) for name in fields}
        )

    return jax.tree.map(restarted, opt_state, is_leaf=has_moments)
