"""Attention in plain JAX: on every device, and wherever probabilities are dropped."""

import jax
import jax.numpy as jnp

from bert_jax.dropout import dropout

# The original adds -10000 to the scores of padding; in float32 both give exactly zero probability.
NEVER = -1e9


def attend(
    q_BxSxAxD: jax.Array,
    k_BxSxAxD: jax.Array,
    v_BxSxAxD: jax.Array,
    examples_BxS: jax.Array,
    *,
    rate: float = 0.0,
    key: jax.Array | None = None,
) -> jax.Array:
    """Softmax of the scaled products, in float32, times the values: [B, S, A, D], in their type.

    Args:
        examples_BxS: number of the example each position belongs to; a position looks only at
            positions of its own example.
        rate, key: of the dropout of the probabilities; no key, no dropout.
    """
    q_BxSxAxD = q_BxSxAxD * (q_BxSxAxD.shape[-1] ** -0.5)
    scores_BxAxSxS = jnp.einsum(
        "bqad,bkad->baqk", q_BxSxAxD, k_BxSxAxD, preferred_element_type=jnp.float32
    )
    allowed_Bx1xSxS = (examples_BxS[:, :, None] == examples_BxS[:, None, :])[:, None]
    p_BxAxSxS = jax.nn.softmax(jnp.where(allowed_Bx1xSxS, scores_BxAxSxS, NEVER))
    p_BxAxSxS = dropout(p_BxAxSxS, rate=rate, key=key)
    return jnp.einsum("baqk,bkad->bqad", p_BxAxSxS.astype(v_BxSxAxD.dtype), v_BxSxAxD)
