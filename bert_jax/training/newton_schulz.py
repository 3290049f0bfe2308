"""Newton-Schulz steps, which take the singular values of matrices into about 0.7 … 1.2.

A step is X ← (a·I + b·G + c·G²)·X with G = X·Xᵀ, so several steps multiply X by one polynomial of
G, a small square matrix if X is wide: "Gram Newton-Schulz" (Dao AI Lab 2026,
dao-lab.ai/blog/2026/gram-newton-schulz; DeepSpeed has it, too). A matrix four times as wide as high
takes two thirds of the FLOPs. After three steps G is computed again, because rounding errors of
small eigenvalues grow from step to step. `optax.contrib` has the steps on X alone, which square
matrices take.

Sizes: N matrices, R rows, C columns.
"""

from typing import Final

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers

_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024, as in optax
_EPS: Final = 1e-8  # as in optax
_STEPS: Final = (3, 2)  # with the first G, and with the second
_WIDE: Final = 2  # columns per row; at 1.5 both forms take the same FLOPs


def orthogonalize(x_NxRxC: jax.Array) -> jax.Array:
    """Returns each matrix [R, C] after five Newton-Schulz steps."""
    _, rows, columns = x_NxRxC.shape
    if columns >= _WIDE * rows:
        return _orthogonalize_wide(x_NxRxC)
    if rows >= _WIDE * columns:
        return _orthogonalize_wide(x_NxRxC.mT).mT
    numbers = MuonDimensionNumbers(reduction_axis=1, output_axis=2)
    muon = optax.contrib.scale_by_muon(beta=0, nesterov=False, weight_dimension_numbers=numbers)
    return muon.update(x_NxRxC, muon.init(x_NxRxC))[0]


def _orthogonalize_wide(x_NxRxC: jax.Array) -> jax.Array:
    # The first G gives the norm of X, so that normalizing takes no pass over X.
    gram_NxRxR = x_NxRxC @ x_NxRxC.mT
    norm_Nx1x1 = jnp.sqrt(jnp.trace(gram_NxRxR, axis1=1, axis2=2))[:, None, None] + _EPS
    x_NxRxC = _polynomial(gram_NxRxR / norm_Nx1x1**2, _STEPS[0]) / norm_Nx1x1 @ x_NxRxC
    return _polynomial(x_NxRxC @ x_NxRxC.mT, _STEPS[1]) @ x_NxRxC


def _polynomial(gram_NxRxR: jax.Array, steps: int) -> jax.Array:
    """Returns the matrix [N, R, R] by which these steps multiply."""
    product = step_NxRxR = _step(gram_NxRxR)
    for _ in range(steps - 1):
        gram_NxRxR = step_NxRxR @ gram_NxRxR @ step_NxRxR
        step_NxRxR = _step(gram_NxRxR)
        product = step_NxRxR @ product
    return product


def _step(gram_NxRxR: jax.Array) -> jax.Array:
    a, b, c = _COEFFICIENTS
    return a * jnp.eye(gram_NxRxR.shape[1])[None] + b * gram_NxRxR + c * (gram_NxRxR @ gram_NxRxR)
