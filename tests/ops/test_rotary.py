"""Rotary positions against complex numbers, and the property they exist for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.ops import rotary
from bert_jax.ops.rotary import rotate, rotation

B, S, A, D = 2, 24, 3, 10


def draw(seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(B, S, A, D)), jnp.float32)


def by_complex_numbers(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """A pair of neighbouring dimensions is one number, turned by the angle of its position."""
    pairs = x[..., 0::2].astype(np.complex128) + 1j * x[..., 1::2]
    angles = positions[..., None, None] * 10_000.0 ** (-np.arange(0, D, 2) / D)
    turned = pairs * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape)


def test_pairs_of_neighbours_turn_by_the_angle_of_their_position():
    x, positions = draw(0), np.random.default_rng(1).integers(0, 512, (B, S))
    got = rotate(x, rotation(jnp.asarray(positions), D, 10_000.0))
    np.testing.assert_allclose(got, by_complex_numbers(np.asarray(x), positions), atol=1e-4)
    np.testing.assert_array_equal(rotate(x, rotation(jnp.zeros((B, S), jnp.int32), D, 10_000.0)), x)


def test_every_backend_turns_by_the_same_numbers():
    """CPUs compute the angles in a loop and exchange neighbours without a product."""
    x, positions = draw(0), np.random.default_rng(1).integers(0, 512, (B, S))
    by = rotation(jnp.asarray(positions), D, 10_000.0)
    plain = rotary._rotation(jnp.asarray(positions), D, 10_000.0)
    for got, expected in zip(by, plain, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)
    np.testing.assert_array_equal(rotary._flipped(x), rotary._product(x))


@pytest.mark.parametrize(("platform", "plain"), [("cpu", True), ("tpu", False), ("cuda", False)])
def test_only_cpus_exchange_neighbours_without_a_product(platform: str, plain: bool):
    def turned(x: jax.Array, positions: jax.Array) -> jax.Array:
        return rotate(x, rotation(positions, D, 10_000.0))

    traced = jax.jit(turned).trace(draw(0), jnp.zeros((B, S), jnp.int32))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("while" in text, "dot_general" not in text) == (plain, plain)


def test_scores_depend_on_distances_only():
    q, k, positions = draw(0), draw(1), jnp.tile(jnp.arange(S), (B, 1))

    def scores(first: int) -> jax.Array:
        by = rotation(positions + first, D, 10_000.0)
        return jnp.einsum("bqad,bkad->baqk", rotate(q, by), rotate(k, by))

    np.testing.assert_allclose(scores(100), scores(0), atol=1e-3)
    assert np.abs(scores(0) - jnp.einsum("bqad,bkad->baqk", q, k)).max() > 1


def test_the_gradient_turns_back():
    x, gradient = draw(0), draw(1)
    by = rotation(jnp.tile(jnp.arange(S), (B, 1)), D, 10_000.0)
    (got,) = jax.vjp(lambda x: rotate(x, by), x)[1](gradient)
    back = rotation(-jnp.tile(jnp.arange(S), (B, 1)), D, 10_000.0)
    np.testing.assert_allclose(got, rotate(gradient, back), atol=1e-6)


@pytest.mark.parametrize("position", [1, 511])
def test_bfloat16_is_rounded_once(position: int):
    x = draw(0).astype(jnp.bfloat16)
    by = rotation(jnp.full((B, S), position), D, 10_000.0)
    exact = rotate(x.astype(jnp.float32), by).astype(jnp.bfloat16)
    assert rotate(x, by).dtype == jnp.bfloat16
    np.testing.assert_array_equal(rotate(x, by).astype(jnp.float32), exact.astype(jnp.float32))
