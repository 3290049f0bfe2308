"""Newton-Schulz steps, which take the singular values of matrices into about 0.7 … 1.2.

A step is X ← a·X + P·X with P = b·G + c·G² and G = X·Xᵀ, so several steps multiply X by one
polynomial of G, a small square matrix if X is wide: "Gram Newton-Schulz" (Dao AI Lab 2026,
dao-lab.ai/blog/2026/gram-newton-schulz; DeepSpeed has it, too). A matrix four times as wide as high
takes two thirds of the FLOPs. After three steps G is computed again, because rounding errors of
small eigenvalues grow from step to step. Square matrices take every step on X, as in
`optax.contrib.scale_by_muon`.

Sizes: N matrices, R rows, C columns. G and P are square, as wide as X's shorter side.
"""

from typing import Final

import jax
import jax.numpy as jnp

_A, _B, _C = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024, as in optax
_EPS: Final = 1e-8  # as in optax
_STEPS: Final = 5
_WIDE_STEPS: Final = (3, 2)  # with the first G, and with the second
_WIDE: Final = 2  # columns per row; at 1.5 both forms take the same FLOPs


def orthogonalize(x_NxRxC: jax.Array) -> jax.Array:
    """Returns each matrix [R, C] after five Newton-Schulz steps."""
    long, short = sorted(x_NxRxC.shape[1:], reverse=True)
    # The first G gives the norm of X, so that normalizing takes no pass over X.
    gram = _gram(x_NxRxC)
    norm_Nx1x1 = jnp.sqrt(jnp.trace(gram, axis1=1, axis2=2))[:, None, None] + _EPS
    gram /= norm_Nx1x1**2
    if long >= _WIDE * short:
        first, second = _WIDE_STEPS
        x_NxRxC = _times(_polynomial(gram, first) / norm_Nx1x1, x_NxRxC)
        return _times(_polynomial(_gram(x_NxRxC), second), x_NxRxC)
    x_NxRxC = _step(_factor(gram), x_NxRxC / norm_Nx1x1)
    for _ in range(_STEPS - 1):
        x_NxRxC = _step(_factor(_gram(x_NxRxC)), x_NxRxC)
    return x_NxRxC


def _gram(x_NxRxC: jax.Array) -> jax.Array:
    """Returns X·Xᵀ, or Xᵀ·X if X is higher than wide."""
    _, rows, columns = x_NxRxC.shape
    return x_NxRxC.mT @ x_NxRxC if rows > columns else x_NxRxC @ x_NxRxC.mT


def _times(symmetric: jax.Array, x_NxRxC: jax.Array) -> jax.Array:
    """Returns X multiplied from the side that the symmetric matrix fits."""
    _, rows, columns = x_NxRxC.shape
    return x_NxRxC @ symmetric if rows > columns else symmetric @ x_NxRxC


def _polynomial(gram: jax.Array, steps: int) -> jax.Array:
    """Returns the matrix by which these steps multiply.

    Its multiple of I is added last, after the barrier: then XLA writes the product in float32,
    which takes fewer cycles than to round it for the next one.
    """
    p = product = _factor(gram)  # less a**steps·I
    for done in range(1, steps):
        gram = _step(p, _step(p, gram))
        p = _factor(gram)
        product = _A**done * p + _step(p, product)
    return _A**steps * jnp.eye(gram.shape[1])[None] + jax.lax.optimization_barrier(product)


def _factor(gram: jax.Array) -> jax.Array:
    """Returns P of a step.

    Without the barriers here and in `_polynomial`, XLA fuses a product into the one that reads it:
    at least 20 % more cycles on v5e than both take separately.
    """
    return _B * gram + _C * jax.lax.optimization_barrier(gram @ gram)


def _step(p: jax.Array, x: jax.Array) -> jax.Array:
    return _A * x + _times(p, x)
