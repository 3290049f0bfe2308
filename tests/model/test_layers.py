"""Gradients written by hand, against those that JAX derives from the textbook's form."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small import COMPUTE, model_config

from bert_jax.model.attention import Attention, Kind
from bert_jax.model.encoder import FeedForward
from bert_jax.model.heads import word_logits
from bert_jax.model.layers import Keys, LayerNorm, activation
from bert_jax.ops import dropout
from bert_jax.ops.attention import xla


def assert_same_gradients(ours: Callable, plain: Callable, *args: jax.Array) -> None:
    """Values and gradients to every argument, within 1e-5 of the largest magnitude."""
    rng = np.random.default_rng(1)
    y, ours_back = jax.vjp(ours, *args)
    wanted, plain_back = jax.vjp(plain, *args)
    dy = jnp.asarray(rng.normal(size=y.shape), y.dtype)
    pairs = zip((y, *ours_back(dy)), (wanted, *plain_back(dy)), strict=True)
    for got, reference in pairs:
        atol = 1e-5 * max(1.0, float(np.abs(reference).max()))
        np.testing.assert_allclose(got, reference, rtol=0, atol=atol)


EXAMPLES = np.array([[1] * 5 + [2] * 4 + [0] * 3, [1] * 12, [0] * 12])
KEY = np.uint32(7)


def textbook(rate: float, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attention over the examples above; the softmax is at least float32."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.einsum("bqad,bkad->baqk", q, k).astype(wide) / 2
    allowed = (EXAMPLES[:, :, None] == EXAMPLES[:, None, :])[:, None]
    p = jax.nn.softmax(jnp.where(allowed, scores, -1e9))
    p = jnp.where(dropout.keep_mask(KEY, p.shape, rate), p / (1 - rate), 0)
    return jnp.einsum("baqk,bkad->bqad", p.astype(v.dtype), v)


def ours(rate: float, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return xla.attend(q, k, v, jnp.asarray(EXAMPLES), rate=rate, key=jnp.asarray(KEY))


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_attention(rate: float) -> None:
    """Two examples and padding in a row; a row of padding alone; the same dropout mask."""
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(3, 12, 2, 4)) * 2, jnp.float32) for _ in range(3))
    assert_same_gradients(functools.partial(ours, rate), functools.partial(textbook, rate), q, k, v)


def test_logits_of_bfloat16_states_are_not_rounded() -> None:
    config = model_config()
    rng = np.random.default_rng(0)
    y = jnp.asarray(rng.normal(size=(1, 3, config.hidden_size)), jnp.bfloat16)
    table = rng.normal(size=(config.padded_vocab_size, config.hidden_size)).astype(np.float32)
    logits = word_logits(config, y, jnp.asarray(table), jnp.zeros(config.padded_vocab_size))
    exact = np.asarray(y, np.float64) @ np.asarray(jnp.asarray(table, jnp.bfloat16), np.float64).T
    real = slice(config.vocab_size)
    np.testing.assert_allclose(logits[..., real], exact[..., real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_a_sublayer_adds_its_input(norm_position: str) -> None:
    """If the output projection is zero, the input is all that remains; "post" normalizes it."""
    config = dataclasses.replace(model_config(), norm_position=norm_position)
    keys = Keys(jax.random.key(0))
    attention, mlp = Attention(config, COMPUTE, keys), FeedForward(config, keys)
    for projection in (attention.output, mlp.down):
        projection.kernel[...] = jnp.zeros_like(projection.kernel[...])
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, config.hidden_size)), jnp.float32)
    normalized = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    wanted = normalized if norm_position == "post" else x
    y = attention(x, jnp.ones((2, 6), int), Kind(0, True, None), None)
    np.testing.assert_allclose(y, wanted, atol=1e-5)
    np.testing.assert_allclose(mlp(x, None), wanted, atol=1e-5)


@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("spread", [1.0, 0.01])
def test_the_gradient_of_attention_is_as_exact_as_autodiffs(spread: float, rate: float) -> None:
    """In bfloat16: what positions have in common must cancel in the gradient of a softmax.

    Errors are against float64. Where g, y and e are rounded at one place and not at another, that
    of the queries is 200 times autodiff's at the smaller spread.
    """
    rng = np.random.default_rng(2)
    shape = (40, 3, 12, 2, 4)
    common = rng.normal(size=(3, 40, 3, 1, 2, 4))
    q, k, v = jnp.asarray(common + spread * rng.normal(size=(3, *shape)), jnp.bfloat16)
    dy = jnp.asarray(rng.normal(size=shape), jnp.bfloat16)

    def gradients(form: Callable, *arrays: jax.Array) -> tuple[np.ndarray, ...]:
        def one(q, k, v, dy):
            return jax.vjp(functools.partial(form, rate), q, k, v)[1](dy)

        return tuple(np.asarray(x, np.float64) for x in jax.jit(jax.vmap(one))(*arrays))

    with jax.enable_x64(True):
        exact = gradients(textbook, *(np.asarray(x, np.float64) for x in (q, k, v, dy)))
    own, plain = (gradients(form, q, k, v, dy) for form in (ours, textbook))
    for e, o, p in zip(exact, own, plain, strict=True):
        assert np.linalg.norm(o - e) <= 1.3 * np.linalg.norm(p - e)


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_layer_norm(offset: float) -> None:
    """Also with rows whose mean is as large as their standard deviation."""
    config = model_config()
    graph, _ = nnx.split(LayerNorm(config, Keys(jax.random.key(0))))
    rng = np.random.default_rng(0)
    H = config.hidden_size
    x = jnp.asarray(rng.normal(offset, 1, (3, 5, H)), jnp.float32)
    scale, bias = (jnp.asarray(rng.normal(1, 0.5, H), jnp.float32) for _ in range(2))

    def ours(x, scale, bias):
        return nnx.merge(graph, {"scale": scale, "bias": bias})(x)

    def plain(x, scale, bias):
        centered = x - x.mean(-1, keepdims=True)
        deviation = jnp.sqrt(jnp.square(centered).mean(-1, keepdims=True) + config.layer_norm_eps)
        return centered / deviation * scale[None, None] + bias[None, None]

    assert_same_gradients(ours, plain, x, scale, bias)


def test_layer_norm_of_a_constant_row_is_finite() -> None:
    config = model_config()
    x = jnp.full((2, config.hidden_size), 1234.5678)
    y, back = jax.vjp(LayerNorm(config, Keys(jax.random.key(0))), x)
    assert np.isfinite(y).all()
    assert np.isfinite(back(jnp.ones_like(y))[0]).all()


@pytest.mark.parametrize(("name", "tanh"), [("gelu", False), ("gelu_tanh", True)])
def test_activation(name: str, tanh: bool) -> None:
    config = dataclasses.replace(model_config(), hidden_act=name)
    x = jnp.linspace(-9, 9, 1001)
    assert_same_gradients(
        lambda x: activation(config, x), lambda x: jax.nn.gelu(x, approximate=tanh), x
    )
