"""The vectors that a sentence encoder makes of packed texts. Sizes as in model.py."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.api import compiled
from bert_jax.api.text_rows import Rows
from bert_jax.config.sentence_parts import Part
from bert_jax.model import vector_layers


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
    examples, starts, positions = map(jnp.asarray, (rows.examples, rows.starts, rows.positions))
    return vector_layers.vectors(x_BxSxH, examples, starts, positions, parts, weights, prompt)
