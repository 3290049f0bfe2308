"""StableAdamW: AdamW that moves a tensor less while its gradients outgrow their second moment.

The rate of a tensor is divided by max(1, RMS), where RMS² is the mean of g²/max(v, eps²) over it
and v the second moment with this gradient, its bias corrected (Wortsman et al. 2023, arXiv
2304.13013, algorithm 2: AdamW with the update clipping of Adafactor). Weight decay is divided, too.
ModernBERT, Ettin and mmBERT were trained with `optimi.StableAdamW`, which computes the same;
`foreach=False` of an earlier version also divides the rates of all tensors after one.

A tensor is one layer of an array. Query, key and value of a layer are one, `Wqkv`, as in the
published models that were trained so; with BERT's names in transformers they are three.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.config.optimizer_settings import OptimizerConfig
from bert_jax.optimizers.adam import ADAMW
from bert_jax.optimizers.optimizer import decayed_weights


def scale_by_stable_adam(
    config: OptimizerConfig, axes: Any, storage: Any | None
) -> optax.GradientTransformation:
    """Returns AdamW's updates, weight decay included, each tensor's divided by max(1, RMS).

    Under `jit` means are computed over the unsharded arrays, on any mesh. An update takes the
    entries of the vocabulary as `vocab_size`: rows beyond them are padding, which changes no mean.

    Args:
        axes: a tree like the parameters', with a tuple of dimension names for each array.
    """
    del storage
    adam, decay = ADAMW.make(config, axes, None), decayed_weights(config)
    least = max(config.eps**2, float(jnp.finfo(jnp.float32).tiny))  # as 0 it would divide 0

    def update(
        gradients: Any, state: Any, params: Any, *, vocab_size: int | None = None, **others: Any
    ) -> tuple[Any, Any]:
        del others

        def divided(
            update: jax.Array, g: jax.Array, v: jax.Array, names: tuple[str, ...]
        ) -> jax.Array:
            dims = tuple(i for i, name in enumerate(names) if name != "layers")
            squares = jnp.sum(jnp.square(g) / jnp.maximum(v, least), dims, keepdims=True)
            elements = math.prod(_entries(g.shape[i], names[i], vocab_size) for i in dims)
            return update / jnp.sqrt(jnp.maximum(squares / elements, 1))

        updates, state = adam.update(gradients, state, params)
        updates, _ = decay.update(updates, decay.init(params), params)
        v = optax.tree.bias_correction(state.nu, config.b2, state.count)
        return jax.tree.map(divided, updates, gradients, v, axes), state

    return optax.GradientTransformationExtraArgs(adam.init, update)


def _entries(size: int, name: str, vocab_size: int | None) -> int:
    """Returns the size of a dimension without padding; vocab_size: None if there is none."""
    return size if name != "vocab" or vocab_size is None else min(size, vocab_size)


STABLE_ADAMW = dataclasses.replace(ADAMW, make=scale_by_stable_adam, decays=True)
