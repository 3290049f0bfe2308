"""Attention with cuDNN's flash attention: NVIDIA GPUs, 16-bit activations."""

import jax


def version() -> str:
    """Returns cuDNN's version, such as 9.12.0: of the installed one, or while compiling for a
    described GPU the one that its compiler is built for (aot/gpu_compiler.py).

    Raises:
        RuntimeError: JAX does not find cuDNN, says why.
    """
    from jax._src.cudnn.fused_attention_stablehlo import check_cudnn_version  # not a public name

    number: int = check_cudnn_version()
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


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
