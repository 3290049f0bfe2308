"""Attention by cuDNN's flash kernels: NVIDIA GPUs, 16-bit activations."""

import jax


def supports(length: int, head_dim: int) -> bool:
    """Whether cuDNN can compute rows of so many positions and heads of such a size."""
    return length % 2 == 0 and head_dim % 8 == 0 and head_dim <= 128


def attend(
    q_BxSxAxD: jax.Array, k_BxSxAxD: jax.Array, v_BxSxAxD: jax.Array, examples_BxS: jax.Array
) -> jax.Array:
    """What `attention_xla.attend` gives without dropout, in the type of the values.

    cuDNN takes no numbers of examples, so each row's block-diagonal mask is written out, once for
    all heads.

    Raises:
        RuntimeError: there is no cuDNN. NotImplementedError: `supports` says no.
    """
    allowed_Bx1xSxS = (examples_BxS[:, :, None] == examples_BxS[:, None, :])[:, None]
    return jax.nn.dot_product_attention(
        q_BxSxAxD, k_BxSxAxD, v_BxSxAxD, mask=allowed_Bx1xSxS, implementation="cudnn"
    )
