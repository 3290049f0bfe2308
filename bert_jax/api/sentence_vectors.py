"""The parts of a sentence encoder, applied to the token states of packed texts.

As the modules of sentence-transformers (Pooling.py, Dense.py, Normalize.py; commit of release 6.2),
in float32. Sizes as in model.py.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.api import compiled
from bert_jax.api.text_rows import Rows
from bert_jax.config.sentence_parts import Dense, Normalize, Part, Pooling

_ACTIVATIONS: Final[Mapping[str, Callable[[jax.Array], jax.Array]]] = {
    "Identity": lambda x: x,
    "Tanh": jnp.tanh,
    "ReLU": jax.nn.relu,
    "GELU": partial(jax.nn.gelu, approximate=False),
    "Sigmoid": jax.nn.sigmoid,
    "SiLU": jax.nn.silu,
}
_SHORTEST: Final = 1e-12  # length by which a vector is divided, as in torch.nn.functional.normalize


@jax.default_matmul_precision("highest")
def vectors(
    graph: nnx.GraphDef,
    params: object,
    weights: Sequence[Mapping[str, jax.Array]],
    rows: Rows,
    *,
    layers: tuple[int, ...],
    parts: tuple[Part, ...],
    prompt: int,
) -> jax.Array:
    """Returns the vector of the text in each place, [B, N, D].

    Args:
        weights: of each part.
        prompt: tokens of the prompt at the start of every text, with [CLS].
    """
    x_BxSxH = compiled.states(graph, params, rows, layers=layers, join="concat")
    pooling, *further = parts
    assert isinstance(pooling, Pooling)
    vector = pooled(x_BxSxH, rows, pooling, prompt)
    for part, own in zip(further, weights[1:], strict=True):
        if isinstance(part, Dense):
            vector = _dense(vector, part, own)
        elif isinstance(part, Normalize):
            length = jnp.linalg.norm(vector, axis=-1, keepdims=True)
            vector = vector / jnp.maximum(length, _SHORTEST)
    return vector


def pooled(x_BxSxH: jax.Array, rows: Rows, pooling: Pooling, prompt: int = 0) -> jax.Array:
    """Returns the pools of each text's states one after the other, [B, N, pools · H]; of an empty
    place any numbers."""
    examples_BxS, positions_BxS = jnp.asarray(rows.examples), jnp.asarray(rows.positions)
    places_N = 1 + jnp.arange(rows.starts.shape[1])
    own_BxNxS = examples_BxS[:, None, :] == places_N[None, :, None]
    if not pooling.include_prompt:
        own_BxNxS &= (positions_BxS >= prompt)[:, None, :]
    pools = [_pool(x_BxSxH, own_BxNxS, positions_BxS, pool) for pool in pooling.pools]
    return jnp.concatenate(pools, -1)


def _pool(
    x_BxSxH: jax.Array, own_BxNxS: jax.Array, positions_BxS: jax.Array, pool: str
) -> jax.Array:
    if pool == "max":
        most_BxNxH = jnp.where(own_BxNxS[..., None], x_BxSxH[:, None], -jnp.inf).max(2)
        return jnp.where(own_BxNxS.any(-1, keepdims=True), most_BxNxH, 0)
    S = own_BxNxS.shape[-1]
    if pool in ("cls", "lasttoken"):
        at_BxN = own_BxNxS.argmax(-1)
        if pool == "lasttoken":
            at_BxN = S - 1 - own_BxNxS[..., ::-1].argmax(-1)
        return jnp.take_along_axis(x_BxSxH, at_BxN[..., None], axis=1)
    weights_BxNxS = own_BxNxS.astype(jnp.float32)
    if pool == "weightedmean":  # a token weighs its place in the text, from 1
        weights_BxNxS *= (1 + positions_BxS)[:, None, :].astype(jnp.float32)
    # A product with the states of all places, in which those of other texts count zero times.
    total_BxNxH = jnp.einsum(
        "bns,bsh->bnh", weights_BxNxS, x_BxSxH, preferred_element_type=jnp.float32
    )
    size_BxN = jnp.maximum(weights_BxNxS.sum(-1), 1)
    if pool == "mean_sqrt_len_tokens":
        size_BxN = jnp.sqrt(size_BxN)
    return total_BxNxH / size_BxN[..., None]


def _dense(x: jax.Array, part: Dense, weights: Mapping[str, jax.Array]) -> jax.Array:
    y = x @ weights["linear.weight"].T
    if part.bias:
        y += jnp.expand_dims(weights["linear.bias"], range(x.ndim - 1))
    y = _ACTIVATIONS[part.activation](y)
    if not part.residual:
        return y
    return y + (x @ weights["residual.weight"].T if "residual.weight" in weights else x)
