"""The arrays of an optimizer's state by the names of its fields, and moments in bfloat16.

A field is one of the named tuples that states of optax are: `mu` of `optax.ScaleByAdamState`.
"""

import itertools
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.ops.hashing import fold_key, hash32


def is_of(fields: Collection[str], path: tuple[Any, ...]) -> bool:
    """Returns whether the array at a path of a state is in one of these fields."""
    names = {key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)}
    return not names.isdisjoint(fields)


def with_fields(fields: Collection[str], change: Callable[[jax.Array], Any], state: Any) -> Any:
    """Returns a state with the arrays of these fields changed, one after the other."""
    return jax.tree_util.tree_map_with_path(
        lambda path, x: change(x) if is_of(fields, path) else x, state
    )


def keep_in(
    dtype: str,
    moments: Collection[str],
    rounded_at_random: Collection[str],
    optimizer: optax.GradientTransformation,
) -> optax.GradientTransformation:
    """Returns an optimizer with moments stored in another dtype; it computes in float32.

    In bfloat16 moments are rounded to nearest, those in `rounded_at_random` stochastically: a step
    changes Adam's second moment by 1 - b2 of its distance to the squared gradient. For b2 = .999
    that is less than half the spacing of bfloat16 values, so rounded to nearest it would never
    decrease. The random bits are a function of (step, array, element), the same on every mesh.
    """
    if dtype == "float32":
        return optimizer
    inner = optax.with_extra_args_support(optimizer)

    def cast(state: Any, to: str) -> Any:
        return with_fields(moments, lambda x: x.astype(to), state)

    def init(params: Any) -> Any:
        return cast(optimizer.init(params), dtype)

    def update(
        gradients: Any, state: Any, params: Any = None, *, step: jax.Array | int = 0, **others: Any
    ) -> tuple[Any, Any]:
        updates, after = inner.update(
            gradients, cast(state, "float32"), params, step=step, **others
        )
        keys = (fold_key(fold_key(step, i), 0) for i in itertools.count())
        after = with_fields(rounded_at_random, lambda x: _round_at_random(x, next(keys)), after)
        return updates, cast(after, dtype)

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
