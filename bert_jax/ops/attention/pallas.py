"""Attention as a TPU kernel (Pallas): scores and probabilities never leave the chip's own memory.

One step of the grid has whole rows and as many heads as fill the 128 lanes of a register, two of
64, and reads queries, keys and values as the dense layer wrote them: nothing is transposed, padded
or cut up in main memory, as the flash and splash attention that come with JAX need it. For the
same reason no other array is kept for the backward pass: it makes the probabilities again, which
costs less than the normalizers of all rows, which memory would hold 128 times over.

Sizes: R rows and Q queries of a step, S positions, A heads, D head dimension, W lanes of a step.
"""

import functools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from bert_jax.ops.attention.xla import NEVER

LANES = 128  # of a register: its last dimension
LONGEST = 1024  # positions of a row; beyond it rows would not fit in the chip's memory whole
_TILE = 512  # positions of a step, and queries that look at 512 keys at once

_NN = (((1,), (0,)), ((), ()))
_NT = (((1,), (1,)), ((), ()))


def supports(length: int, head_dim: int) -> bool:
    """Whether the kernel can compute rows of so many positions and heads of such a size."""
    return length % LANES == 0 and length <= LONGEST and head_dim % 8 == 0


def attend(
    q_BxSxAxD: jax.Array,
    k_BxSxAxD: jax.Array,
    v_BxSxAxD: jax.Array,
    examples_BxS: jax.Array,
    *,
    interpret: bool = False,
) -> jax.Array:
    """What `attention_xla.attend` gives without dropout, on one TPU.

    Args:
        interpret: run on any device, slowly: for tests.

    Raises:
        ValueError: `supports` says no.
    """
    B, S, A, D = q_BxSxAxD.shape
    if not supports(S, D):
        raise ValueError(f"no kernel for {S} positions and a head dimension of {D}")
    q, k, v = (x.reshape(B, S, A * D) for x in (q_BxSxAxD, k_BxSxAxD, v_BxSxAxD))
    return _attend(q, k, v, examples_BxS, D, interpret).reshape(B, S, A, D)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend(q, k, v, examples_BxS, head_dim, interpret):
    return _call(_forward_kernel, 1, examples_BxS, (q, k, v), head_dim, interpret)[0]


def _forward(q, k, v, examples_BxS, head_dim, interpret):
    return _attend(q, k, v, examples_BxS, head_dim, interpret), (q, k, v, examples_BxS)


def _backward(head_dim, interpret, kept, dy):
    q, k, v, examples_BxS = kept
    return *_call(_backward_kernel, 3, examples_BxS, (q, k, v, dy), head_dim, interpret), None


_attend.defvjp(_forward, _backward)


def _call(kernel, outputs, examples_BxS, arrays, head_dim, interpret):
    """The kernel over arrays [B, S, A * D], giving so many like them."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    B, S, H = arrays[0].shape
    W = math.lcm(LANES, head_dim)
    W = W if H % W == 0 else H
    R = max(r for r in range(1, B + 1) if B % r == 0 and r * S <= max(_TILE, S))
    # Scores and their gradient, and two more products of each in the backward pass; a product
    # costs as if it had all lanes.
    products = 2 if outputs == 1 else 5
    scores = B * S * S * H // head_dim
    like = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
    block = pl.BlockSpec((R, S, W), lambda b, h: (b, 0, h))
    return pl.pallas_call(
        functools.partial(kernel, head_dim=head_dim),
        grid=(B // R, H // W),
        in_specs=[
            pl.BlockSpec((R, S, 1), lambda b, h: (b, 0, 0)),
            pl.BlockSpec((R, 1, S), lambda b, h: (b, 0, 0)),
            *[block] * len(arrays),
        ],
        out_specs=[block] * outputs,
        out_shape=[like] * outputs,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=pl.CostEstimate(
            flops=2 * products * scores * max(head_dim, LANES),
            transcendentals=scores,
            bytes_accessed=(len(arrays) + outputs) * arrays[0].nbytes,
        ),
        interpret=interpret,
        name=f"attention{kernel.__name__.removesuffix('_kernel')}",
    )(examples_BxS[:, :, None], examples_BxS[:, None, :], *arrays)


def _dot(a: jax.Array, b: jax.Array, dims: tuple) -> jax.Array:
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _heads(W: int, head_dim: int) -> Iterator[tuple[slice, jax.Array]]:
    """Of each head of a step: its lanes as a slice, and as a mask [1, W].

    Products are taken over all lanes, those of other heads being zero or thrown away: the matrix
    unit has 128 anyway, and to move lanes costs.
    """
    lane_1xW = jax.lax.broadcasted_iota(jnp.int32, (1, W), 1)
    for start in range(0, W, head_dim):
        stop = start + head_dim
        yield slice(start, stop), (lane_1xW >= start) & (lane_1xW < stop)


def _query_blocks(S: int) -> Iterator[slice]:
    Q = max(LANES, min(S, _TILE * _TILE // S // LANES * LANES))
    return (slice(start, min(start + Q, S)) for start in range(0, S, Q))


def _probabilities(q_QxW, k_SxW, examples_Sx1, examples_1xQ):
    """Not yet normalized probabilities [S, Q] (keys first: sums over them need no lane to move),
    and what normalizes them, [1, Q]; the queries are scaled, with zeros in other heads' lanes."""
    scores_SxQ = _dot(k_SxW, q_QxW, _NT)
    scores_SxQ = jnp.where(examples_Sx1 == examples_1xQ, scores_SxQ, NEVER)
    p_SxQ = jnp.exp(scores_SxQ - scores_SxQ.max(0, keepdims=True))
    return p_SxQ, 1 / p_SxQ.sum(0, keepdims=True)


def _forward_kernel(column_ref, row_ref, q_ref, k_ref, v_ref, y_ref, *, head_dim):
    """One step: column_ref [R, S, 1] and row_ref [R, 1, S] have the examples, others [R, S, W]."""
    R, S, W = q_ref.shape
    scale = jnp.asarray(head_dim**-0.5, q_ref.dtype)
    for r in range(R):
        k_SxW, v_WxS, column = k_ref[r], v_ref[r].T, column_ref[r]
        for queries in _query_blocks(S):
            q_QxW, row, parts = q_ref[r, queries] * scale, row_ref[r, :, queries], []
            for lanes, own in _heads(W, head_dim):
                p_SxQ, inverse = _probabilities(jnp.where(own, q_QxW, 0), k_SxW, column, row)
                parts.append(_dot(v_WxS[lanes], p_SxQ.astype(v_WxS.dtype), _NN) * inverse)
            y_ref[r, queries] = jnp.concatenate(parts).astype(y_ref.dtype).T


def _backward_kernel(
    column_ref, row_ref, q_ref, k_ref, v_ref, dy_ref, dq_ref, dk_ref, dv_ref, *, head_dim
):
    """As above: from the gradient of the result those of queries, keys and values."""
    R, S, W = q_ref.shape
    dtype, scale = q_ref.dtype, jnp.asarray(head_dim**-0.5, q_ref.dtype)
    for r in range(R):
        k_SxW, v_SxW, column = k_ref[r], v_ref[r], column_ref[r]
        k_WxS = (k_SxW * scale).T
        dk_SxW, dv_SxW = jnp.zeros((2, S, W), jnp.float32)
        for queries in _query_blocks(S):
            q_QxW, dy_QxW, parts = q_ref[r, queries] * scale, dy_ref[r, queries], []
            row = row_ref[r, :, queries]
            for lanes, own in _heads(W, head_dim):
                own_q, own_dy = jnp.where(own, q_QxW, 0), jnp.where(own, dy_QxW, 0)
                p_SxQ, inverse = _probabilities(own_q, k_SxW, column, row)
                p_SxQ *= inverse
                dp_SxQ = _dot(v_SxW, own_dy, _NT)
                mean_1xQ = (p_SxQ * dp_SxQ).sum(0, keepdims=True)
                ds_SxQ = (p_SxQ * (dp_SxQ - mean_1xQ)).astype(dtype)
                dv_SxW += _dot(p_SxQ.astype(dtype), own_dy, _NN)
                dk_SxW += _dot(ds_SxQ, own_q, _NN)
                parts.append(_dot(k_WxS[lanes], ds_SxQ, _NN))
            dq_ref[r, queries] = jnp.concatenate(parts).astype(dtype).T
        dk_ref[r], dv_ref[r] = dk_SxW.astype(dtype), dv_SxW.astype(dtype)
