"""Attention that the heads of each layer pay to the tokens next to a token.

BERT's published initial values spread attention evenly. While the held-out loss stays near that of
the unigram, no head has found the neighbours yet; when one does, the loss falls.
"""

import jax
import jax.numpy as jnp

from bert_jax.model.attention import Attention, Kind
from bert_jax.model.attention_weights import layer_attention_weights
from bert_jax.model.encoder import Encoder, Layer
from bert_jax.model.layer_loop import apply_layers
from bert_jax.parallel.global_batch import Batch

Sums = dict[str, jax.Array]


def neighbor_attention(encoder: Encoder, batch: Batch) -> Sums:
    """Returns sums over all tokens of a batch that have a neighbour on a side in their example.

    left, right: attention probability of that neighbour, float32 [L, A]; count: the number of these
    tokens, the same on both sides.
    """
    examples_BxS = batch["example_ids"]
    x_BxSxH, kinds = encoder.embed(
        batch["input_ids"], batch["token_type_ids"], batch["position_ids"]
    )

    def body(x_BxSxH: jax.Array, layer: Layer, kind: Kind, key: jax.Array | None) -> tuple:
        sums = _sums(layer.attention, x_BxSxH, examples_BxS, kind)
        return layer(x_BxSxH, examples_BxS, kind, key), sums

    _, (left_LxA, right_LxA) = apply_layers(encoder.layers, kinds, body, x_BxSxH)
    count = jnp.sum(_pairs(examples_BxS), dtype=jnp.float32)
    return {"left": left_LxA, "right": right_LxA, "count": count}


def _pairs(examples_BxS: jax.Array) -> jax.Array:
    """Returns bools [B, S - 1]: whether a position and the next one are of the same example."""
    return (examples_BxS[:, 1:] == examples_BxS[:, :-1]) & (examples_BxS[:, 1:] > 0)


def _sums(
    attention: Attention, x_BxSxH: jax.Array, examples_BxS: jax.Array, kind: Kind
) -> tuple[jax.Array, jax.Array]:
    """Returns the sums of one layer, [A] each; x: hidden states before it."""
    attention_BxAxSxS = layer_attention_weights(attention, x_BxSxH, examples_BxS, kind)
    weights = _pairs(examples_BxS).astype(jnp.float32)[:, None]
    left, right = (
        jnp.sum(jnp.diagonal(attention_BxAxSxS, offset, 2, 3) * weights, (0, 2))
        for offset in (-1, 1)
    )
    return left, right
