"""BERT's Adam, and Adam moments in bfloat16."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.ops.hashing import fold_key, hash32


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


def keep_moments_in(dtype: str, adam: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns Adam with moments stored in another dtype; it computes in float32.

    In bfloat16 the first moment is rounded to nearest and the second stochastically: a step changes
    it by 1 - b2 of its distance to the squared gradient. For b2 = .999 that is less than half the
    spacing of bfloat16 values, so rounded to nearest it would never decrease. The random bits are a
    function of (step, array, element), the same on every mesh.
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
    """Rounds float32 stochastically to bfloat16: each result is a neighbour of x, their mean is x.

    Infinity is preserved. NaN may not be, but a step that has one is skipped.

    Args:
        x: fewer than 2**32 elements.
    """
    index = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        index = index * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    below = hash32(index ^ key) >> 16  # bfloat16 is the upper half of float32
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) + below
    truncated = jax.lax.bitcast_convert_type(bits & np.uint32(0xFFFF0000), jnp.float32)
    return truncated.astype(jnp.bfloat16)
