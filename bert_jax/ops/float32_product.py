"""Products of arrays in the compute dtype, kept in float32, with a gradient in the compute dtype.

Autodiff would multiply the float32 gradient with the arrays: products in float32, which a GPU
computes at half the rate. The program of a TPU is the same either way.
"""

import functools

import jax
import jax.numpy as jnp


def float32_product(form: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns the float32 product of two arrays of one dtype; form: as of `jnp.einsum`."""
    if a.dtype == jnp.float32:
        return _product(form, a, b)
    return _rounding_product(form, a, b)


def _product(form: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(form, a, b, preferred_element_type=jnp.float32)


_rounding_product = jax.custom_vjp(_product, nondiff_argnums=(0,))


def _forward(form, a, b):
    return _product(form, a, b), (a, b)


def _backward(form, arrays, gradient):
    _, pull_back = jax.vjp(functools.partial(jnp.einsum, form), *arrays)
    return pull_back(gradient.astype(arrays[0].dtype))


_rounding_product.defvjp(_forward, _backward)
