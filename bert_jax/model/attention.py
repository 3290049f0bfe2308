"""Self-attention, block-diagonal over the examples of a row.

Sizes: B rows, S positions, H hidden, A heads, D head dimension. Line numbers refer to
google-research/bert.
"""

from typing import NamedTuple

import jax
from flax import nnx

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.model.layers import Dense, Keys, LayerNorm, residual
from bert_jax.ops.attention import dispatch
from bert_jax.ops.dropout import dropout
from bert_jax.ops.hashing import fold_key
from bert_jax.ops.rotary import Rotation, rotate
from bert_jax.ops.split_qkv import split_qkv


class Kind(NamedTuple):
    """A form of attention.

    window: tokens that it reaches, half on each side, 0 for all; normed: whether attention has a
    LayerNorm; rotation: of each position, None without rotary positions; causal: whether a position
    reads no position after it.
    """

    window: int
    normed: bool
    rotation: Rotation | None
    causal: bool = False


class Attention(nnx.Module):
    """LayerNorm(x + dropout(attention(x))): modeling.py:560-758 and 850-864; see `residual`."""

    def __init__(self, config: ModelConfig, compute: ComputeConfig, keys: Keys):
        H, A, D = config.hidden_size, config.num_attention_heads, config.head_dim
        self.config, self.kernel = config, compute.attention
        self.qkv = Dense(
            config,
            keys,
            (H,),
            (3, A, D),
            ("embed", "qkv", "heads", "head_dim"),
            bias=config.linear_bias,
        )
        scale = config.near_identity.attention * config.output_scale
        self.output = Dense(
            config, keys, (A, D), (H,), ("heads", "head_dim", "embed"), scale, config.linear_bias
        )
        self.norm = LayerNorm(config, keys)

    def __call__(
        self,
        x_BxSxH: jax.Array,
        examples_BxS: jax.Array,
        kind: Kind,
        key: jax.Array | None,
    ) -> jax.Array:
        """Returns the hidden states after attention [B, S, H].

        Args:
            x_BxSxH: hidden states.
            examples_BxS: id of the example of each position, 0 for padding.
            key: uint32 dropout key of this layer, None in evaluation.
        """

        keys = (None, None) if key is None else (fold_key(key, 0), fold_key(key, 1))
        probability_key, hidden_key = keys

        def branch(x_BxSxH: jax.Array) -> jax.Array:
            q_BxSxAxD, k_BxSxAxD, v_BxSxAxD = self.queries_keys_values(x_BxSxH, kind.rotation)
            y_BxSxAxD = dispatch.attend(
                self.kernel,
                q_BxSxAxD,
                k_BxSxAxD,
                v_BxSxAxD,
                examples_BxS,
                window=kind.window,
                causal=kind.causal,
                rate=self.config.attention_probs_dropout_prob,
                key=probability_key,
            )
            rate = self.config.hidden_dropout_prob
            return dropout(self.output(y_BxSxAxD), rate=rate, key=hidden_key)

        return residual(self.config, self.norm, x_BxSxH, branch, normed=kind.normed)

    def queries_keys_values(
        self, x_BxSxH: jax.Array, rotation: Rotation | None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns queries, keys and values, [B, S, A, D] each; x: see `branch_input`."""
        q_BxSxAxD, k_BxSxAxD, v_BxSxAxD = split_qkv(
            self.qkv.product(x_BxSxH),
            None if self.qkv.bias is None else self.qkv.bias[...].astype(x_BxSxH.dtype),
        )
        if rotation:
            q_BxSxAxD, k_BxSxAxD = rotate(q_BxSxAxD, rotation), rotate(k_BxSxAxD, rotation)
        return q_BxSxAxD, k_BxSxAxD, v_BxSxAxD
