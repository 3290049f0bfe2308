"""Layer-wise learning rates: the lower a layer, the lower its rate.

As in ELECTRA (`_get_layer_lrs` in model/optimization.py of google-research/electra): with a decay d
and L layers, layer l (from 0) has the rate times d^(L + 1 - l), the embeddings times d^(L + 2), and
heads the rate itself. The pooler counts as a head, a LayerNorm after the last layer has d, and
layers that share their parameters count as one.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax


def scale_by_layer(
    decay: float, axes: Any, layers: int | None = None
) -> optax.GradientTransformation:
    """Returns a transformation that multiplies each layer's update.

    axes: a tree like the parameters', with a tuple of dimension names for each array.
    layers: their number; None: that of the stacked arrays.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        stacked = layers or _layers(updates, axes)

        def scale(path: tuple, x: jax.Array, names: tuple[str, ...]) -> jax.Array:
            part, *within = (str(key.key) for key in path)
            if part != "encoder" or within[0] == "pooler":
                return x
            if names[0] == "layers":
                exponents = stacked + 1 - jnp.arange(stacked)
                return x * (decay**exponents).reshape(-1, *[1] * (x.ndim - 1))
            is_first = within[0] in ("embeddings", "projection")
            return x * decay ** (stacked + 2 if is_first else 1)

        return jax.tree_util.tree_map_with_path(scale, updates, axes), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _layers(tree: Any, axes: Any) -> int:
    """Returns the number of layers, which the stacked arrays have as their first dimension."""
    sizes = jax.tree.map(lambda x, names: len(x) if names[0] == "layers" else 0, tree, axes)
    return max(jax.tree.leaves(sizes))
