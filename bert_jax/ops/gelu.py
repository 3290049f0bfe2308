"""GELU with a custom gradient.

It saves 48 MiB for the backward pass, autodiff 288 (base, 64 rows of 128 tokens; `benchmarks/ops.py
--compile=`, 2026-11-22). In the v5e step of two unrolled layers XLA recomputes what autodiff saves:
cycles and memory are the same (`--layers=2 --compile=gelu`). A loop over the layers, which stores
what is saved for each, was not compiled.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def gelu(x: jax.Array, tanh: bool) -> jax.Array:
    """Returns GELU, computed in float32, in the dtype of x; tanh: use the approximation."""
    return _gelu32(x.astype(jnp.float32), tanh).astype(x.dtype)


def _gelu32(x: jax.Array, tanh: bool) -> jax.Array:
    if tanh:
        return jax.nn.gelu(x, approximate=True)
    # jax.nn.gelu uses erfc, which costs two series and an exponential.
    return x * (0.5 + 0.5 * jax.lax.erf(x * np.float32(0.5**0.5)))


def _forward(x: jax.Array, tanh: bool) -> tuple[jax.Array, jax.Array]:
    return gelu(x, tanh), x


def _backward(tanh: bool, x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    _, gradient = jax.vjp(lambda x: _gelu32(x, tanh), x.astype(jnp.float32))
    (dx,) = gradient(dy.astype(jnp.float32))
    return (dx.astype(x.dtype),)


gelu.defvjp(_forward, _backward)
