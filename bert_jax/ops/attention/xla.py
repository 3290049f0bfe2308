"""Attention in plain JAX: on every device, and wherever probabilities are dropped.

The gradient is written by hand, so that only one array as large as the scores is kept, in the type
of the values, and each pass touches as few of them as it can. With e = exp(scores - their maximum),
m the mask of the dropout (0 or 1), a = 1 - rate and t = a·sum(e) over the keys,

    y = (m·e) v / t        ds = e · (m·(g vᵀ) - a·rowsum(g·y)),  g = dy / t

so t divides only arrays [S, D], and the sum over the keys in a softmax's gradient is rowsum(dy·y),
which needs no scores (Dao et al. 2022, arXiv:2205.14135).

A softmax ignores what all scores of a row have in common, so sum(ds) over the keys must be zero.
Where hidden states are alike, as on the plateau early in pretraining, m·(g vᵀ) and the sum are
nearly equal, and the gradient is what little is left. So the sum has to be that of the numbers that
are multiplied: t is summed from e as it was rounded, g is rounded once for both places, y enters
the sum in float32, and dropout scales no rounded array.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.ops.dropout import keep_mask

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
    dtype = v_BxSxAxD.dtype
    scores_BxAxSxS = jnp.einsum(
        "bqad,bkad->baqk", q_BxSxAxD, k_BxSxAxD, preferred_element_type=jnp.float32
    )
    allowed_Bx1xSxS = (examples_BxS[:, :, None] == examples_BxS[:, None, :])[:, None]
    scores_BxAxSxS = jnp.where(allowed_Bx1xSxS, scores_BxAxSxS, NEVER)
    e_BxAxSxS = jnp.exp(scores_BxAxSxS - scores_BxAxSxS.max(-1, keepdims=True))
    e_BxAxSxS = _rounded(e_BxAxSxS, dtype)
    t_BxSxAx1 = e_BxAxSxS.sum(-1).swapaxes(1, 2)[..., None] * _kept_share(key, rate)
    e_BxAxSxS = e_BxAxSxS.astype(dtype)
    y_BxSxAxD = jnp.einsum(
        "baqk,bkad->bqad", _dropped(e_BxAxSxS, key, rate), v_BxSxAxD,
        preferred_element_type=jnp.float32,
    )  # fmt: skip
    y_BxSxAxD = y_BxSxAxD / t_BxSxAx1
    kept = q_BxSxAxD, k_BxSxAxD, v_BxSxAxD, e_BxAxSxS, t_BxSxAx1, y_BxSxAxD, key
    return y_BxSxAxD.astype(dtype), kept


def _backward(rate: float, kept: tuple, dy_BxSxAxD: jax.Array) -> tuple[Any, ...]:
    q_BxSxAxD, k_BxSxAxD, v_BxSxAxD, e_BxAxSxS, t_BxSxAx1, y_BxSxAxD, key = kept
    g_BxSxAxD = _rounded(dy_BxSxAxD / t_BxSxAx1, dy_BxSxAxD.dtype)
    sums_BxSxAx1 = (g_BxSxAxD * y_BxSxAxD).sum(-1, keepdims=True) * _kept_share(key, rate)
    g_BxSxAxD = g_BxSxAxD.astype(dy_BxSxAxD.dtype)
    dv_BxSxAxD = jnp.einsum("baqk,bqad->bkad", _dropped(e_BxAxSxS, key, rate), g_BxSxAxD)
    dp_BxAxSxS = jnp.einsum(
        "bqad,bkad->baqk", g_BxSxAxD, v_BxSxAxD, preferred_element_type=jnp.float32
    )
    dp_BxAxSxS = _dropped(dp_BxAxSxS, key, rate) - sums_BxSxAx1.swapaxes(1, 2)
    ds_BxAxSxS = (e_BxAxSxS * dp_BxAxSxS).astype(e_BxAxSxS.dtype)
    dq_BxSxAxD = jnp.einsum("baqk,bkad->bqad", ds_BxAxSxS, k_BxSxAxD)
    dk_BxSxAxD = jnp.einsum("baqk,bqad->bkad", ds_BxAxSxS, q_BxSxAxD)
    return dq_BxSxAxD, dk_BxSxAxD, dv_BxSxAxD, None, None


_attend.defvjp(_forward, _backward)


def _rounded(x: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Float32, with the precision of another type. Of two casts XLA may make none."""
    to = jnp.finfo(dtype)
    return jax.lax.reduce_precision(x, to.nexp, to.nmant) if dtype != x.dtype else x


def _dropped(x: jax.Array, key: jax.Array | None, rate: float) -> jax.Array:
    """Dropout without its scale, which rounding would make another for e than for its gradient."""
    if key is None or rate == 0:
        return x
    return jnp.where(keep_mask(key, x.shape, rate), x, 0)


def _kept_share(key: jax.Array | None, rate: float) -> float:
    return 1.0 if key is None else 1 - rate
