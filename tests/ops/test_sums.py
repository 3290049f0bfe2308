"""Sums over the positions of wide arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.ops.sums import add_bias, over_positions

B, P, V = 3, 5, 40


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_the_gradient_of_a_bias_is_the_sum_over_all_positions() -> None:
    x, bias, weights = drawn(B, P, V), drawn(V), drawn(B, P, V)

    def loss(x: jax.Array, bias: jax.Array) -> jax.Array:
        return (weights * add_bias(x, bias)).sum()

    of_x, of_bias = jax.jit(jax.grad(loss, (0, 1)))(x, bias)
    np.testing.assert_array_equal(of_x, weights)
    expected = weights.astype(np.float64).sum((0, 1))
    np.testing.assert_allclose(of_bias, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(add_bias(x, bias), x + bias)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("groups", [(), (2,)])
def test_sums_are_made_in_float32(groups: tuple[int, ...], dtype: str) -> None:
    """Of many values, whose sum in bfloat16 would stop growing at 256."""
    x = jnp.ones((*groups, 30, 40, V), dtype)
    found = jax.jit(over_positions)(x)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.full((*groups, V), 1200))


@pytest.mark.parametrize(("platform", "product"), [("cpu", True), ("tpu", False), ("cuda", False)])
def test_only_cpus_multiply_by_ones(platform: str, product: bool) -> None:
    lowered = jax.jit(over_positions).trace(drawn(B, P, V)).lower(lowering_platforms=(platform,))
    assert ("dot_general" in lowered.as_text()) == product
