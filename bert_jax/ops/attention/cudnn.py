"""Attention with cuDNN's flash attention: NVIDIA GPUs, 16-bit activations."""

import jax


def supports(length: int, head_dim: int) -> bool:
    """Returns whether cuDNN supports this row length and head dimension."""
    return length % 2 == 0 and head_dim % 8 == 0 and head_dim <= 128


def attend(
    q_BxSxAxD: jax.Array, k_BxSxAxD: jax.Array, v_BxSxAxD: jax.Array, examples_BxS: jax.Array
) -> jax.Array:
    """Returns the result of `xla.attend` without dropout, in the dtype of the values.

    cuDNN does not take example ids, so each row's block-diagonal mask is materialized, once for all
    heads.

    Raises:
        RuntimeError: cuDNN is not available.
        NotImplementedError: `supports` returns False.
    """
    allowed_Bx1xSxS = (examples_BxS[:, :, None] == examples_BxS[:, None, :])[:, None]
    return jax.nn.dot_product_attention(
        q_BxSxAxD, k_BxSxAxD, v_BxSxAxD, mask=allowed_Bx1xSxS, implementation="cudnn"
    )
