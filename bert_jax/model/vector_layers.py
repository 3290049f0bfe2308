"""The parts of a sentence encoder, as the modules of sentence-transformers (Dense.py, Normalize.py;
release 6.2), in float32: applied to the states of texts, and dense layers in the head of a run.

Weights are named as there, `Dense.shapes`, with matrices as [out, in]; parameters are [in, out].
Sizes: B rows, S positions, N places for texts in a row, H hidden, D numbers of a vector.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn.initializers import variance_scaling, zeros

from bert_jax.config.sentence_parts import Dense, Normalize, Part, Pooling
from bert_jax.model.layer_states import pool
from bert_jax.model.layers import Keys, param

_ACTIVATIONS: Final[Mapping[str, Callable[[jax.Array], jax.Array]]] = {
    "Identity": lambda x: x,
    "Tanh": jnp.tanh,
    "ReLU": jax.nn.relu,
    "GELU": partial(jax.nn.gelu, approximate=False),
    "Sigmoid": jax.nn.sigmoid,
    "SiLU": jax.nn.silu,
}
_OURS: Final = {"linear.weight": "kernel", "linear.bias": "bias", "residual.weight": "residual"}
_SHORTEST: Final = 1e-12  # length by which a vector is divided, as in torch.nn.functional.normalize
_LIKE_PYTORCH: Final = variance_scaling(1 / 3, "fan_in", "uniform")  # torch.nn.Linear's weight
_NAME: Final = "dense_{}"  # of a layer in a head


class VectorLayer(nnx.Module):
    """A dense layer in float32. Random matrices are drawn as torch.nn.Linear draws them, biases are
    zero."""

    def __init__(self, keys: Keys, part: Dense):
        self.part = part
        for name, shape in part.shapes.items():
            # Whole on every device: widths are any, those of other people's folders, too.
            axes, init = ("pooled", "classes"), _LIKE_PYTORCH if len(shape) > 1 else zeros
            setattr(self, _OURS[name], param(keys, shape[::-1], axes[-len(shape) :], init))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., width before] -> [..., width]"""
        leaves = {_OURS[name]: getattr(self, _OURS[name])[...] for name in self.part.shapes}
        return dense(x, self.part, _to_pytorch(leaves, self.part))


@jax.default_matmul_precision("highest")
def dense(x: jax.Array, part: Dense, weights: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the vectors [..., width] that a layer makes of others [..., width before]."""
    y = x @ weights["linear.weight"].T
    if part.bias:
        y += jnp.expand_dims(weights["linear.bias"], range(x.ndim - 1))
    y = _ACTIVATIONS[part.activation](y)
    if not part.residual:
        return y
    return y + (x @ weights["residual.weight"].T if "residual.weight" in weights else x)


def vectors(
    x_BxSxH: jax.Array,
    examples_BxS: jax.Array,
    starts_BxN: jax.Array,
    positions_BxS: jax.Array,
    parts: Sequence[Part],
    weights: Sequence[Mapping[str, jax.Array]],
    prompt: int = 0,
) -> jax.Array:
    """Returns the vector of the text in each place, [B, N, D], from the states of the encoder.

    Args:
        examples_BxS, starts_BxN, positions_BxS: as of `layer_states.pool`.
        parts: a pool and the layers after it.
        weights: of each part.
        prompt: tokens of the prompt at the start of every text, with [CLS].
    """
    pooling, *further = parts
    assert isinstance(pooling, Pooling)
    first = 0 if pooling.include_prompt else prompt
    vector = pool(x_BxSxH, examples_BxS, starts_BxN, positions_BxS, pooling.pools, first)
    for part, own in zip(further, weights[1:], strict=True):
        if isinstance(part, Dense):
            vector = dense(vector, part, own)
        elif isinstance(part, Normalize):
            length = jnp.linalg.norm(vector, axis=-1, keepdims=True)
            vector = vector / jnp.maximum(length, _SHORTEST)
    return vector


def add_layers(head: nnx.Module, keys: Keys, parts: Sequence[Dense]) -> None:
    """Gives a head these layers."""
    for number, part in enumerate(parts):
        setattr(head, _NAME.format(number), VectorLayer(keys, part))


def apply_layers(head: nnx.Module, parts: Sequence[Dense], x: jax.Array) -> jax.Array:
    """Returns the vectors that the layers of a head make of others, both [..., D]."""
    for number in range(len(parts)):
        x = getattr(head, _NAME.format(number))(x)
    return x


def weights_of(head: Mapping[str, Any], parts: Sequence[Dense]) -> list[dict[str, np.ndarray]]:
    """Returns the weights of the layers, float32, from the parameters of a head."""
    found = [_to_pytorch(head[_NAME.format(i)], part) for i, part in enumerate(parts)]
    return [{name: np.array(x, np.float32, order="C") for name, x in one.items()} for one in found]


def parameters_of(weights: Sequence[Mapping[str, np.ndarray]]) -> dict[str, dict[str, np.ndarray]]:
    """Returns the parameters that layers with these weights have in a head."""
    return {
        _NAME.format(number): {_OURS[name]: np.array(x.T, order="C") for name, x in own.items()}
        for number, own in enumerate(weights)
    }


def is_layer(name: str) -> bool:
    """Returns whether it is the name of a layer in a head."""
    return name.startswith(_NAME.format(""))


def _to_pytorch(leaves: Mapping[str, Any], part: Dense) -> dict[str, Any]:
    return {name: leaves[_OURS[name]].T for name in part.shapes}
