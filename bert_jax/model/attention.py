"""Self-attention, block-diagonal over the examples of a row.

Sizes: B rows, S positions, H hidden, A heads, D head dimension. Lines are of google-research/bert.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.model.layers import Dense, Keys, LayerNorm
from bert_jax.ops.attention import dispatch
from bert_jax.ops.dropout import dropout, fold


class Attention(nnx.Module):
    """LayerNorm(x + dropout(attention(x))): modeling.py:560-758 and 850-864."""

    def __init__(self, config: ModelConfig, compute: ComputeConfig, keys: Keys):
        H, A, D = config.hidden_size, config.num_attention_heads, config.head_dim
        self.form = compute.attention
        self.hidden_rate = config.hidden_dropout_prob
        self.probability_rate = config.attention_probs_dropout_prob
        self.qkv = Dense(config, keys, (H,), (3, A, D), ("embed", "qkv", "heads", "head_dim"))
        self.output = Dense(config, keys, (A, D), (H,), ("heads", "head_dim", "embed"))
        self.norm = LayerNorm(config, keys)

    def __call__(
        self, x_BxSxH: jax.Array, examples_BxS: jax.Array, key: jax.Array | None
    ) -> jax.Array:
        """[B, S, H] -> [B, S, H].

        Args:
            examples_BxS: number of the example each position belongs to, 0 for padding.
            key: uint32 dropout key of this layer, None in evaluation.
        """
        probability_key, hidden_key = (None, None) if key is None else (fold(key, 0), fold(key, 1))
        q_BxSxAxD, k_BxSxAxD, v_BxSxAxD = _biased_parts(
            self.qkv.product(x_BxSxH), self.qkv.bias[...].astype(x_BxSxH.dtype)
        )
        y_BxSxAxD = dispatch.attend(
            self.form,
            q_BxSxAxD,
            k_BxSxAxD,
            v_BxSxAxD,
            examples_BxS,
            rate=self.probability_rate,
            key=probability_key,
        )
        y_BxSxH = dropout(self.output(y_BxSxAxD), rate=self.hidden_rate, key=hidden_key)
        return self.norm(x_BxSxH + y_BxSxH)


@jax.custom_vjp
def _biased_parts(qkv_BxSx3xAxD: jax.Array, bias_3xAxD: jax.Array) -> tuple[jax.Array, ...]:
    """Queries, keys and values [B, S, A, D] from the product and its bias.

    Their gradients are summed for the bias one by one, before they are stacked: so each sum is the
    end of the product that makes the gradient. After, it would be a pass of its own over all three.
    """
    return tuple(jnp.unstack(qkv_BxSx3xAxD + bias_3xAxD[None, None], axis=2))


def _parts_forward(
    qkv_BxSx3xAxD: jax.Array, bias_3xAxD: jax.Array
) -> tuple[tuple[jax.Array, ...], None]:
    return _biased_parts(qkv_BxSx3xAxD, bias_3xAxD), None


def _parts_backward(_: None, parts_BxSxAxD: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    return jnp.stack(parts_BxSxAxD, axis=2), jnp.stack([d.sum((0, 1)) for d in parts_BxSxAxD])


_biased_parts.defvjp(_parts_forward, _parts_backward)
