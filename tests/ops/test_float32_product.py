"""Products kept in float32, and the products of their gradient."""

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.ops.float32_product import float32_product

FORM = "bpe,ve->bpv"


def gradients(dtype: jnp.dtype) -> tuple[jax.Array, list[jax.Array]]:
    """The product of rounded arrays, and both gradients of a sum of it with weights."""
    keys = jax.random.split(jax.random.key(0), 3)
    x, kernel = (jax.random.normal(k, s) for k, s in zip(keys, [(2, 3, 8), (5, 8)], strict=False))
    x, kernel = (y.astype(jnp.bfloat16).astype(dtype) for y in (x, kernel))
    weights = jax.random.normal(keys[2], (2, 3, 5))
    out, pull_back = jax.vjp(lambda *arrays: float32_product(FORM, *arrays), x, kernel)
    return out, [g.astype(jnp.float32) for g in pull_back(weights)]


def test_a_product_of_bfloat16_is_float32_and_so_near_are_its_gradients() -> None:
    exact, exact_gradients = gradients(jnp.float32)
    out, rounded = gradients(jnp.bfloat16)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, exact, rtol=1e-6, atol=1e-6)
    for some, all_of_it in zip(rounded, exact_gradients, strict=True):
        np.testing.assert_allclose(some, all_of_it, rtol=0, atol=2**-7 * np.abs(all_of_it).max())


def test_no_product_of_the_gradient_is_in_float32() -> None:
    arrays = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((2, 3, 8), (5, 8))]
    loss = jax.grad(lambda *xs: float32_product(FORM, *xs).sum(), (0, 1))
    text = jax.jit(loss).lower(*arrays).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 2
    assert not [line for line in products if "xf32>" in line.partition("->")[0]]
