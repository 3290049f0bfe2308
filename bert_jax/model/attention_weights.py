"""Attention probabilities of every head, computed by the functions of the forward pass.

Sizes: B rows, S positions, A heads, L layers. Kernels of attention do not return their
probabilities, so queries and keys are computed once more and multiplied in plain JAX.
"""

import jax

from bert_jax.model.attention import Attention, Kind
from bert_jax.model.encoder import Encoder, Layer
from bert_jax.model.layer_loop import apply_layers
from bert_jax.model.layers import branch_input
from bert_jax.ops.attention.xla import Band, masked_scores


def layer_attention_weights(
    attention: Attention, x_BxSxH: jax.Array, examples_BxS: jax.Array, kind: Kind
) -> jax.Array:
    """Returns the attention probabilities of one layer, float32 [B, A, S, S]: of each query (third
    axis) over the keys (last axis); 0 outside its example and its window. x: states before it."""
    if kind.normed:
        x_BxSxH = branch_input(attention.config, attention.norm, x_BxSxH)
    q_BxSxAxD, k_BxSxAxD, _ = attention.queries_keys_values(x_BxSxH, kind.rotation)
    q_BxAxSxD, k_BxAxSxD = q_BxSxAxD.swapaxes(1, 2), k_BxSxAxD.swapaxes(1, 2)
    band = Band(kind.window // 2) if kind.window else None
    scores_BxAxSxS = masked_scores(q_BxAxSxD, k_BxAxSxD, examples_BxS, band)
    return jax.nn.softmax(scores_BxAxSxS * q_BxSxAxD.shape[-1] ** -0.5)


def attention_weights(
    encoder: Encoder,
    ids_BxS: jax.Array,
    types_BxS: jax.Array,
    examples_BxS: jax.Array,
    positions_BxS: jax.Array,
) -> jax.Array:
    """Returns the attention probabilities of every layer, float32 [L, B, A, S, S]; the arguments
    are those of a call of the encoder in evaluation."""
    x_BxSxH, kinds = encoder.embed(ids_BxS, types_BxS, positions_BxS)

    def body(x_BxSxH: jax.Array, layer: Layer, kind: Kind, key: jax.Array | None) -> tuple:
        weights = layer_attention_weights(layer.attention, x_BxSxH, examples_BxS, kind)
        return layer(x_BxSxH, examples_BxS, kind, key), weights

    return apply_layers(encoder.layers, kinds, body, x_BxSxH)[1]
