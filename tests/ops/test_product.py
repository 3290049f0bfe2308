"""The product of hidden states and a kernel, and its gradients on each backend."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.ops.product import product

SHAPES = {  # of x and the kernel, with the number of contracted dimensions
    "wider": ((2, 5, 6), (6, 3, 4), 1),
    "narrower": ((2, 5, 3, 4), (3, 4, 6), 2),
}


def drawn(shape: tuple[int, ...], seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("case", SHAPES)
def test_values_and_gradients_are_those_of_a_product_of_matrices(case: str) -> None:
    of_x, of_kernel, contracted = SHAPES[case]
    x, kernel = drawn(of_x, 0), drawn(of_kernel, 1)
    inputs = int(np.prod(of_kernel[:contracted]))
    rows, matrix = np.reshape(x, (-1, inputs)), np.reshape(kernel, (inputs, -1))
    y, back = jax.vjp(lambda x, kernel: product(x, kernel, contracted), x, kernel)
    np.testing.assert_allclose(y, (rows @ matrix).reshape(y.shape), rtol=1e-5, atol=1e-5)
    gradient = drawn(y.shape, 2)
    flat = np.reshape(gradient, (len(rows), -1))
    d_x, d_kernel = back(gradient)
    np.testing.assert_allclose(d_x, (flat @ matrix.T).reshape(of_x), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(d_kernel, (rows.T @ flat).reshape(of_kernel), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("case", "platform", "transposed"),
    [("wider", "cpu", False), ("wider", "tpu", True), ("narrower", "cpu", True)],
)
def test_cpus_put_the_narrower_array_first(case: str, platform: str, transposed: bool) -> None:
    """A gradient that puts the output's gradient first ends with a transpose."""
    of_x, of_kernel, contracted = SHAPES[case]
    of_y = (*of_x[: len(of_x) - contracted], *of_kernel[contracted:])

    def d_kernel(x: jax.Array, kernel: jax.Array, gradient: jax.Array) -> jax.Array:
        return jax.vjp(lambda kernel: product(x, kernel, contracted), kernel)[1](gradient)[0]

    traced = jax.jit(d_kernel).trace(drawn(of_x, 0), drawn(of_kernel, 1), drawn(of_y, 2))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("stablehlo.transpose" in text) == transposed


def test_a_checkpoint_policy_for_products_stores_it() -> None:
    """The rule for gradients would otherwise hide the product from `config.compute.remat`."""

    def products(policy: Callable) -> int:
        def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
            return jnp.sin(product(x, kernel, 1)).sum()

        stored = jax.value_and_grad(jax.checkpoint(loss, policy=policy), (0, 1))
        traced = jax.jit(stored).trace(drawn((2, 5, 6), 0), drawn((6, 3, 4), 1))
        return traced.lower(lowering_platforms=("tpu",)).as_text().count("stablehlo.dot_general")

    policies = jax.checkpoint_policies
    assert products(policies.nothing_saveable) == 4  # the product twice, and two gradients
    assert products(policies.dots_saveable) == 3
    assert products(policies.dots_with_no_batch_dims_saveable) == 3
