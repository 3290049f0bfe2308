"""JAX's splash attention for rows longer than `pallas.py` takes: TPUs, memory linear in the length.

It works on blocks of queries and keys, skips no block here (every example may reach across all of
them), and takes example ids. Arrays are transposed to heads first for it, and heads narrower than
128 lanes are padded on the chip.
"""

import jax

from bert_jax.ops.attention.pallas import LANES

_BLOCK = 512  # queries, and keys, of a grid step: of JAX's own examples; not timed on a TPU


def supports(length: int, head_dim: int) -> bool:
    """Returns whether the kernel supports this row length and head dimension."""
    return length % LANES == 0 and head_dim % 8 == 0


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
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as kernel,
    )
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    _, S, A, D = q_BxSxAxD.shape
    if not supports(S, D):
        raise ValueError(f"no kernel for {S} positions and a head dimension of {D}")
    block = next(size for size in range(min(_BLOCK, S), 0, -LANES) if S % size == 0)
    attend_heads = kernel.make_splash_mha(
        masks.MultiHeadMask([masks.FullMask((S, S))] * A),
        block_sizes=kernel.BlockSizes(
            block_q=block, block_kv=block, block_kv_compute=block,
            block_q_dkv=block, block_kv_dkv=block, block_kv_dkv_compute=block,
            block_q_dq=block, block_kv_dq=block,
        ),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )  # fmt: skip
    q_BxAxSxD, k_BxAxSxD, v_BxAxSxD = (
        x.swapaxes(1, 2) for x in (q_BxSxAxD * D**-0.5, k_BxSxAxD, v_BxSxAxD)
    )
    segments = kernel.SegmentIds(q=examples_BxS, kv=examples_BxS)
    return jax.vmap(attend_heads)(q_BxAxSxD, k_BxAxSxD, v_BxAxSxD, segments).swapaxes(1, 2)
