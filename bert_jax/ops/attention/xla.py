"""Attention in plain JAX: for every device, and whenever attention dropout is on.

The gradient is written by hand, so that the residuals include only one array of the size of the
scores, in the dtype of the values, and each pass reads and writes as few such arrays as possible.
With e = exp(scores - their maximum), m the dropout mask (0 or 1), a = 1 - rate and t = a·sum(e)
over the keys,

    y = (m·e) v / t        ds = e · (m·(g vᵀ) - a·rowsum(g·y)),  g = dy / t

so t divides only arrays [S, D], and the sum over the keys in a softmax's gradient is rowsum(dy·y),
which needs no scores (Dao et al. 2022, arXiv:2205.14135).

It saves 84 MiB for the backward pass, autodiff 277 (base, 64 rows of 128 tokens). In the v5e step
of two layers autodiff takes 3.7 % more cycles and 10 % more memory (`benchmarks/ops.py --layers=2
--compile=attention`, 2026-11-22).

A softmax is invariant to a constant added to all scores of a row, so sum(ds) over the keys must be
zero. If hidden states are similar, as on the plateau early in pretraining, m·(g vᵀ) and the sum are
nearly equal, and the gradient is their small difference. So the sum must use exactly the numbers
that are multiplied: t is the sum of the rounded e, g is rounded once for both terms, y enters the
sum in float32, and dropout scales no rounded array.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.ops.dropout import keep_mask

# The original adds -10000 to the scores of padding; in float32 both give exactly zero probability.
NEVER = -1e9


Examples = jax.Array | tuple[jax.Array, jax.Array]


class Band(NamedTuple):
    """The keys that a window leaves to each query: from i + offset - half to i + offset + half."""

    half: float
    offset: float = 0


def attend(
    q_BxSxAxD: jax.Array,
    k_BxSxAxD: jax.Array,
    v_BxSxAxD: jax.Array,
    examples_BxS: Examples,
    *,
    rate: float = 0.0,
    key: jax.Array | None = None,
    band: Band | None = None,
) -> jax.Array:
    """Returns scaled dot-product attention [B, S, A, D], in the dtype of the values.

    The softmax is computed in float32.

    Args:
        examples_BxS: id of the example of each position; a position attends only to positions of
            its own example. [B, 2, S], or a pair of arrays: the example that each position reads,
            and its own. Of a pair, keys and values may have another length than queries.
        rate, key: rate and uint32 key of the attention dropout; None for no dropout.
        band: the keys in the window of each query; None: all.
    """
    q_BxAxSxD, k_BxAxSxD, v_BxAxSxD = heads_first(q_BxSxAxD, k_BxSxAxD, v_BxSxAxD)
    y_BxAxSxD = attend_heads(q_BxAxSxD, k_BxAxSxD, v_BxAxSxD, examples_BxS, key, rate, band)
    return y_BxAxSxD.swapaxes(1, 2)


def heads_first(
    q_BxSxAxD: jax.Array, k_BxSxAxD: jax.Array, v_BxSxAxD: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns scaled queries, keys and values, [B, A, S, D] each, as in a product of batches: XLA
    for CPUs takes 0.6 times as long."""
    q_BxSxAxD = q_BxSxAxD * (q_BxSxAxD.shape[-1] ** -0.5)
    q_BxAxSxD, k_BxAxSxD, v_BxAxSxD = (x.swapaxes(1, 2) for x in (q_BxSxAxD, k_BxSxAxD, v_BxSxAxD))
    return q_BxAxSxD, k_BxAxSxD, v_BxAxSxD


def masked_scores(
    q_BxAxSxD: jax.Array, k_BxAxSxD: jax.Array, examples_BxS: Examples, band: Band | None = None
) -> jax.Array:
    """Returns q · k in float32 [B, A, S, S] within an example and the band, NEVER elsewhere."""
    scores_BxAxSxS = jnp.einsum(
        "baqd,bakd->baqk", q_BxAxSxD, k_BxAxSxD, preferred_element_type=jnp.float32
    )
    reads_BxS, own_BxS = reads_and_own(examples_BxS)
    allowed_Bx1xSxS = (reads_BxS[:, :, None] == own_BxS[:, None, :])[:, None]
    if band:
        queries, keys = (jnp.arange(x.shape[-1]) for x in (reads_BxS, own_BxS))
        within_SxS = jnp.abs(keys[None, :] - queries[:, None] - band.offset) <= band.half
        allowed_Bx1xSxS &= within_SxS[None, None]
    return jnp.where(allowed_Bx1xSxS, scores_BxAxSxS, NEVER)


def reads_and_own(examples_BxS: Examples) -> tuple[jax.Array, jax.Array]:
    """Returns the example that each position reads, and its own."""
    if isinstance(examples_BxS, tuple):
        return examples_BxS
    if examples_BxS.ndim == 3:
        return examples_BxS[:, 0], examples_BxS[:, 1]
    return examples_BxS, examples_BxS


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def attend_heads(
    q_BxAxSxD: jax.Array,
    k_BxAxSxD: jax.Array,
    v_BxAxSxD: jax.Array,
    examples_BxS: Examples,
    key: jax.Array | None,
    rate: float,
    band: Band | None,
) -> jax.Array:
    """Returns attention for the arrays of `heads_first`; the others are as in `attend`."""
    return _forward(q_BxAxSxD, k_BxAxSxD, v_BxAxSxD, examples_BxS, key, rate, band)[0]


def _forward(
    q_BxAxSxD: jax.Array,
    k_BxAxSxD: jax.Array,
    v_BxAxSxD: jax.Array,
    examples_BxS: Examples,
    key: jax.Array | None,
    rate: float,
    band: Band | None,
) -> tuple[jax.Array, tuple]:
    dtype = v_BxAxSxD.dtype
    scores_BxAxSxS = masked_scores(q_BxAxSxD, k_BxAxSxD, examples_BxS, band)
    e_BxAxSxS = jnp.exp(scores_BxAxSxS - scores_BxAxSxS.max(-1, keepdims=True))
    e_BxAxSxS = _rounded(e_BxAxSxS, dtype)
    t_BxAxSx1 = e_BxAxSxS.sum(-1, keepdims=True) * _keep_probability(key, rate)
    e_BxAxSxS = e_BxAxSxS.astype(dtype)
    y_BxAxSxD = jnp.einsum(
        "baqk,bakd->baqd", _dropped(e_BxAxSxS, key, rate), v_BxAxSxD,
        preferred_element_type=jnp.float32,
    )  # fmt: skip
    y_BxAxSxD = y_BxAxSxD / t_BxAxSx1
    residuals = q_BxAxSxD, k_BxAxSxD, v_BxAxSxD, e_BxAxSxS, t_BxAxSx1, y_BxAxSxD, key
    return y_BxAxSxD.astype(dtype), residuals


def _backward(
    rate: float, band: Band | None, residuals: tuple, dy_BxAxSxD: jax.Array
) -> tuple[Any, ...]:
    q_BxAxSxD, k_BxAxSxD, v_BxAxSxD, e_BxAxSxS, t_BxAxSx1, y_BxAxSxD, key = residuals
    g_BxAxSxD = _rounded(dy_BxAxSxD / t_BxAxSx1, dy_BxAxSxD.dtype)
    sums_BxAxSx1 = (g_BxAxSxD * y_BxAxSxD).sum(-1, keepdims=True) * _keep_probability(key, rate)
    g_BxAxSxD = g_BxAxSxD.astype(dy_BxAxSxD.dtype)
    dv_BxAxSxD = jnp.einsum("baqk,baqd->bakd", _dropped(e_BxAxSxS, key, rate), g_BxAxSxD)
    dp_BxAxSxS = jnp.einsum(
        "baqd,bakd->baqk", g_BxAxSxD, v_BxAxSxD, preferred_element_type=jnp.float32
    )
    dp_BxAxSxS = _dropped(dp_BxAxSxS, key, rate) - sums_BxAxSx1
    ds_BxAxSxS = (e_BxAxSxS * dp_BxAxSxS).astype(e_BxAxSxS.dtype)
    dq_BxAxSxD = jnp.einsum("baqk,bakd->baqd", ds_BxAxSxS, k_BxAxSxD)
    dk_BxAxSxD = jnp.einsum("baqk,baqd->bakd", ds_BxAxSxS, q_BxAxSxD)
    return dq_BxAxSxD, dk_BxAxSxD, dv_BxAxSxD, None, None


attend_heads.defvjp(_forward, _backward)


def _rounded(x: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Rounds float32 to the precision of another dtype; XLA may remove a pair of casts."""
    to = jnp.finfo(dtype)
    return jax.lax.reduce_precision(x, to.nexp, to.nmant) if dtype != x.dtype else x


def _dropped(x: jax.Array, key: jax.Array | None, rate: float) -> jax.Array:
    """Applies dropout without its scale, which rounding would change for e but not its gradient."""
    if key is None or rate == 0:
        return x
    return jnp.where(keep_mask(key, x.shape, rate), x, 0)


def _keep_probability(key: jax.Array | None, rate: float) -> float:
    return 1.0 if key is None else 1 - rate
