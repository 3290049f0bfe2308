"""The row of an optimizer, and the chain of transformations that it is a part of.

Line numbers refer to google-research/bert. The optimizers do not apply the learning rate: the step
computes params - rate·update, and the rate is a function of the run's step alone (schedule.py). So
no optimizer counter can disagree with it.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.config.optimizer_settings import OptimizerConfig
from bert_jax.config.optimizers import OPTIMIZERS
from bert_jax.config.schema import Config
from bert_jax.errors import UserError
from bert_jax.optimizers import layer_decay, moments
from bert_jax.optimizers.frozen import frozen_names, without


@dataclass(frozen=True)
class Optimizer:
    """An optimizer: a part of the chain of `make_optimizer`, and what its state consists of.

    Fields are those of the named tuples of its state, such as `mu` of `optax.ScaleByAdamState`.
    Every array of the state is in one of them.

    Attributes:
        make: (config, axes, storage), as in `make_optimizer` -> a transformation from clipped
            gradients to updates, without learning rate, and without weight decay unless `decays`.
        moments: fields that mirror the parameters. They are sharded like these, stored in
            `config.moment_dtype`, and zeros where a phase resets moments.
        rounded_at_random: those of them that a step changes by less than bfloat16 can tell.
        counts: fields with one number, zero where a phase resets the count.
        decays: `make`'s updates include weight decay (`decayed_weights`).
        after_decay: axes -> a transformation of updates that include weight decay.
        compiler_options: of the training step, by the platform of the devices.
    """

    make: Callable[[OptimizerConfig, Any, Any | None], optax.GradientTransformation]
    moments: tuple[str, ...]
    rounded_at_random: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    decays: bool = False
    after_decay: Callable[[Any], optax.GradientTransformation] = lambda axes: optax.identity()
    compiler_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def weight_decay_mask(params: Any) -> Any:
    """Returns True for all parameters but biases and LayerNorm, as in optimization.py:65."""

    def leaf(path: tuple, _: Any) -> bool:
        names = {key.key for key in path}
        return not names & {"bias", "norm"}

    return jax.tree_util.tree_map_with_path(leaf, params)


def decayed_weights(config: OptimizerConfig) -> optax.GradientTransformation:
    """Returns a transformation that adds weight_decay·p to the updates."""
    everything = functools.partial(
        jax.tree.map, lambda _: True
    )  # a mask too, so that both have the same state
    on = weight_decay_mask if config.weight_decay_on == "weights" else everything
    return optax.add_decayed_weights(config.weight_decay, mask=on)


def optimizer_of(
    config: Config, axes: Any, storage: Any | None = None
) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer of a run, see `make_optimizer`: of the parameters that are not frozen,
    see `frozen.py`, which raises UserError for names of none."""
    layers = config.model.layers_of_parameters

    def make(of_trained: Any) -> optax.GradientTransformationExtraArgs:
        return make_optimizer(
            config.optimizer, of_trained, storage, layers, config.model.vocab_size
        )

    names = frozen_names(config)
    return without(names, axes, make) if names else make(axes)


def make_optimizer(
    config: OptimizerConfig,
    axes: Any,
    storage: Any | None = None,
    layers: int | None = None,
    vocab_size: int | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Returns a chain of global-norm clipping, the optimizer, weight decay, what the optimizer does
    after it, and layer-wise rates.

    Its updates are not yet scaled by the learning rate. Weight decay is decoupled and scaled by the
    rate: weight_decay·p is added to the update. `weight_decay_on="all"` decays biases and LayerNorm
    too, as fairseq does with its single parameter group.

    Args:
        axes: a tree like the parameters', with a tuple of dimension names for each array
            (`partition.param_axes`).
        storage: a tree of NamedShardings of parameters and moments, which Muon needs on several
            devices; those of frozen parameters may be among them.
        layers: size of the stack of the layers' parameters, which layer-wise rates need where it
            is frozen; None: that of the parameters.
        vocab_size: entries of the vocabulary, beyond which rows are padding; None: there is none.

    Returns:
        A transformation whose update takes the run's `step`, used only for stochastic rounding; its
        parts are given `vocab_size` too, as optax gives extra arguments. Its
        init raises UserError for a state that the optimizer's row does not describe.
    """
    row: Optimizer = OPTIMIZERS[config.name]
    scale = row.make(config, axes, storage)
    chain = optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        moments.keep_in(config.moment_dtype, row.moments, row.rounded_at_random, scale),
        optax.identity() if row.decays else decayed_weights(config),
        row.after_decay(axes),
        *(
            [layer_decay.scale_by_layer(config.layer_decay, axes, layers)]
            * (config.layer_decay < 1)
        ),
    )

    def init(params: Any) -> Any:
        state = chain.init(params)
        _check_described(config.name, row, state, params)
        return state

    update = functools.partial(optax.with_extra_args_support(chain).update, vocab_size=vocab_size)
    return optax.GradientTransformationExtraArgs(init, update)


def _check_described(name: str, row: Optimizer, state: Any, params: Any) -> None:
    """Raises UserError for an array of the state that is neither moments nor a count."""
    shapes = {path: x.shape for path, x in jax.tree_util.tree_leaves_with_path(params)}
    for path, x in jax.tree_util.tree_leaves_with_path(state):
        tails = (path[start:] for start in range(len(path)))
        mirrors = any(shapes.get(tail) == x.shape for tail in tails)
        is_moment = moments.is_of(row.moments, path) and mirrors
        if not is_moment and not (moments.is_of(row.counts, path) and not x.shape):
            where = jax.tree_util.keystr(path, simple=True, separator="/")
            raise UserError(
                f"config.optimizer.name={name}: its row does not describe {where} {[*x.shape]}; "
                "name the field in `moments` if its arrays have the shapes of parameters, or in "
                "`counts` if it is one number"
            )


def reset_for_phase(opt_state: Any, config: OptimizerConfig) -> Any:
    """Returns the optimizer state at the start of a later phase; same structure, dtypes and shapes.

    `phase_moments="reset"` sets the moments to zero, `phase_count="reset"` the update count of the
    bias correction (optimizers without bias correction have none). Published runs:
    google-research/bert starts its second phase from the parameters alone (reset, reset); NVIDIA's
    keeps the moments and resets the count (carry, reset).
    """
    row: Optimizer = OPTIMIZERS[config.name]
    reset = row.moments * (config.phase_moments == "reset")
    reset += row.counts * (config.phase_count == "reset")
    return moments.with_fields(reset, jnp.zeros_like, opt_state)
