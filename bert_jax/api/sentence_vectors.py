"""The parts of a sentence encoder, applied to the token states of packed texts.

As the modules of sentence-transformers (Normalize.py; commit of release 6.2), in float32, the dense
layers of model/vector_layers.py and the pools of model/layer_states.py. Sizes as in model.py.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.api import compiled
from bert_jax.api.text_rows import Rows
from bert_jax.config.sentence_parts import Dense, Normalize, Part, Pooling
from bert_jax.model.layer_states import pool
from bert_jax.model.vector_layers import dense

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
    examples, starts, positions = map(jnp.asarray, (rows.examples, rows.starts, rows.positions))
    first = 0 if pooling.include_prompt else prompt
    vector = pool(x_BxSxH, examples, starts, positions, pooling.pools, first)
    for part, own in zip(further, weights[1:], strict=True):
        if isinstance(part, Dense):
            vector = dense(vector, part, own)
        elif isinstance(part, Normalize):
            length = jnp.linalg.norm(vector, axis=-1, keepdims=True)
            vector = vector / jnp.maximum(length, _SHORTEST)
    return vector
