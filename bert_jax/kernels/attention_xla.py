"""Attention in plain JAX: on every device, and wherever probabilities are dropped.

The gradient is written by hand, so that only one array as large as the scores is kept, in the type
of the values, and each pass touches as few of them as it can. With e = exp(scores - their maximum)
and t = sum(e) over the keys, the probabilities are p = e / t, and with m the mask of the dropout

    y = (m·e) v / t        ds = e · (m·(g vᵀ) - rowsum(g·y)),  g = dy / t

so t divides only arrays [S, D], and the sum over the keys in a softmax's gradient,
rowsum(m·p·(dy vᵀ)), is rowsum(dy·y), which needs no scores (Dao et al. 2022, arXiv:2205.14135).
"""

import functools
from typing import Any

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
    return _attend(q_BxSxAxD, k_BxSxAxD, v_BxSxAxD, examples_BxS, key, rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(
    q_BxSxAxD: jax.Array,
    k_BxSxAxD: jax.Array,
    v_BxSxAxD: jax.Array,
    examples_BxS: jax.Array,
    key: jax.Array | None,
    rate: float,
) -> jax.Array:
    """The same of queries that are scaled."""
    return _forward(q_BxSxAxD, k_BxSxAxD, v_BxSxAxD, examples_BxS, key, rate)[0]


def _forward(
    q_BxSxAxD: jax.Array,
    k_BxSxAxD: jax.Array,
    v_BxSxAxD: jax.Array,
    examples_BxS: jax.Array,
    key: jax.Array | None,
    rate: float,
) -> tuple[jax.Array, tuple]:
    scores_BxAxSxS = jnp.einsum(
        "bqad,bkad->baqk", q_BxSxAxD, k_BxSxAxD, preferred_element_type=jnp.float32
    )
    allowed_Bx1xSxS = (examples_BxS[:, :, None] == examples_BxS[:, None, :])[:, None]
    scores_BxAxSxS = jnp.where(allowed_Bx1xSxS, scores_BxAxSxS, NEVER)
    e_BxAxSxS = jnp.exp(scores_BxAxSxS - scores_BxAxSxS.max(-1, keepdims=True))
    t_BxSxAx1 = e_BxAxSxS.sum(-1).swapaxes(1, 2)[..., None]
    e_BxAxSxS = e_BxAxSxS.astype(v_BxSxAxD.dtype)
    y_BxSxAxD = jnp.einsum(
        "baqk,bkad->bqad", dropout(e_BxAxSxS, rate=rate, key=key), v_BxSxAxD,
        preferred_element_type=jnp.float32,
    )  # fmt: skip
    y_BxSxAxD = (y_BxSxAxD / t_BxSxAx1).astype(v_BxSxAxD.dtype)
    return y_BxSxAxD, (q_BxSxAxD, k_BxSxAxD, v_BxSxAxD, e_BxAxSxS, t_BxSxAx1, y_BxSxAxD, key)


def _backward(rate: float, kept: tuple, dy_BxSxAxD: jax.Array) -> tuple[Any, ...]:
    q_BxSxAxD, k_BxSxAxD, v_BxSxAxD, e_BxAxSxS, t_BxSxAx1, y_BxSxAxD, key = kept
    g_BxSxAxD = dy_BxSxAxD / t_BxSxAx1
    sums_BxAxSx1 = (g_BxSxAxD * y_BxSxAxD).sum(-1).swapaxes(1, 2)[..., None]
    g_BxSxAxD = g_BxSxAxD.astype(dy_BxSxAxD.dtype)
    dropped_BxAxSxS = dropout(e_BxAxSxS, rate=rate, key=key)
    dv_BxSxAxD = jnp.einsum("baqk,bqad->bkad", dropped_BxAxSxS, g_BxSxAxD)
    dp_BxAxSxS = jnp.einsum(
        "bqad,bkad->baqk", g_BxSxAxD, v_BxSxAxD, preferred_element_type=jnp.float32
    )
    dp_BxAxSxS = dropout(dp_BxAxSxS, rate=rate, key=key)
    ds_BxAxSxS = (e_BxAxSxS * (dp_BxAxSxS - sums_BxAxSx1)).astype(e_BxAxSxS.dtype)
    dq_BxSxAxD = jnp.einsum("baqk,bkad->bqad", ds_BxAxSxS, k_BxSxAxD)
    dk_BxSxAxD = jnp.einsum("baqk,bqad->bkad", ds_BxAxSxS, q_BxSxAxD)
    return dq_BxSxAxD, dk_BxSxAxD, dv_BxSxAxD, None, None


_attend.defvjp(_forward, _backward)
