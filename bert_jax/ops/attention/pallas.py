"""Attention as a TPU kernel (Pallas): scores and probabilities never leave VMEM.

A grid step has full rows and as many heads as fill the 128 lanes of a register (two heads of 64).
It reads queries, keys and values in the layout in which the dense layer wrote them: nothing is
transposed, padded or sliced in HBM, unlike in JAX's own flash and splash attention. The backward
pass recomputes the probabilities and stores no residual besides its inputs: recomputing costs less
than reading the normalizers of all rows, which HBM would store padded 128 times. It is written by
hand because JAX has no reverse-mode autodiff of such a kernel; neither pass was timed on a TPU.

Sizes: R rows and Q queries of a grid step, S positions, A heads, D head dimension, W lanes of a
grid step.
"""

import functools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from bert_jax.ops.attention.xla import NEVER

LANES = 128  # last dimension of a vector register
LONGEST = 1024  # positions of a row; longer rows would not fit in VMEM
_TILE = 512  # positions of a grid step; queries that attend to 512 keys at once

_NN = (((1,), (0,)), ((), ()))
_NT = (((1,), (1,)), ((), ()))


def supports(length: int, head_dim: int) -> bool:
    """Returns whether the kernel supports this row length and head dimension."""
    return length % LANES == 0 and length <= LONGEST and head_dim % 8 == 0


def attend(
    q_BxSxAxD: jax.Array,
    k_BxSxAxD: jax.Array,
    v_BxSxAxD: jax.Array,
    examples_BxS: jax.Array,
    *,
    interpret: bool = False,
) -> jax.Array:
    """Returns the result of `xla.attend` without dropout, on one TPU.

    Args:
        interpret: run in interpret mode on any device, slowly; for tests.

    Raises:
        ValueError: `supports` returns False.
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


def _backward(head_dim, interpret, residuals, dy):
    q, k, v, examples_BxS = residuals
    return *_call(_backward_kernel, 3, examples_BxS, (q, k, v, dy), head_dim, interpret), None


_attend.defvjp(_forward, _backward)


def _call(kernel, outputs, examples_BxS, arrays, head_dim, interpret):
    """Runs a kernel over arrays [B, S, A * D]; returns `outputs` arrays of that shape."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    B, S, H = arrays[0].shape
    W = math.lcm(LANES, head_dim)
    W = W if H % W == 0 else H
    R = max(r for r in range(1, B + 1) if B % r == 0 and r * S <= max(_TILE, S))
    # Forward: the scores and their product with the values. Backward: the scores again and four
    # products of gradients. A product costs as much as if it used all lanes.
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
    """Yields the lanes of each head of a grid step, as a slice and as a mask [1, W].

    Products are computed over all lanes, where other heads' lanes are zero or discarded: the matrix
    unit has 128 lanes anyway, and moving lanes is expensive.
    """
    lane_1xW = jax.lax.broadcasted_iota(jnp.int32, (1, W), 1)
    for start in range(0, W, head_dim):
        stop = start + head_dim
        yield slice(start, stop), (lane_1xW >= start) & (lane_1xW < stop)


def _query_blocks(S: int) -> Iterator[slice]:
    Q = max(LANES, min(S, _TILE * _TILE // S // LANES * LANES))
    return (slice(start, min(start + Q, S)) for start in range(0, S, Q))


def _probabilities(q_QxW, k_SxW, examples_Sx1, examples_1xQ):
    """Returns unnormalized probabilities [S, Q] and their normalizers [1, Q].

    Keys come first so that sums over them move no lanes. The queries are already scaled, with zeros
    in the lanes of other heads.
    """
    scores_SxQ = _dot(k_SxW, q_QxW, _NT)
    scores_SxQ = jnp.where(examples_Sx1 == examples_1xQ, scores_SxQ, NEVER)
    p_SxQ = jnp.exp(scores_SxQ - scores_SxQ.max(0, keepdims=True))
    return p_SxQ, 1 / p_SxQ.sum(0, keepdims=True)


def _forward_kernel(column_ref, row_ref, q_ref, k_ref, v_ref, y_ref, *, head_dim):
    """A grid step; column_ref [R, S, 1] and row_ref [R, 1, S] are example ids, others [R, S, W]."""
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
    """A grid step of the gradients of queries, keys and values; refs as in the forward kernel."""
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
