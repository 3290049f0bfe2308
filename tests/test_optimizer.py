"""Optimizers and the schedule against plain NumPy written from the original's source."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax import optimizer
from bert_jax.config_file import load
from bert_jax.schedule import bert_linear

CONFIG = dataclasses.replace(load("base").optimizer, learning_rate=0.01, warmup_steps=2)
TOTAL = 10


def params() -> dict:
    rng = np.random.default_rng(0)
    return {
        "dense": {"kernel": rng.normal(size=(4, 3)), "bias": rng.normal(size=3)},
        "norm": {"scale": rng.normal(size=3), "bias": rng.normal(size=3)},
    }


def gradients(step: int) -> dict:
    rng = np.random.default_rng(step + 1)
    return jax.tree.map(lambda p: 3 * rng.normal(size=p.shape), params())


def rate_of_the_original(step: int, peak: float, warmup: int, total: int) -> float:
    """optimization.py:32-54: polynomial decay of power 1 from step 0, overridden in the warmup."""
    decayed = (peak - 0) * (1 - min(step, total) / total) ** 1.0
    is_warmup = float(step < warmup)
    return (1 - is_warmup) * decayed + is_warmup * peak * step / warmup


def reference(name: str, steps: int) -> dict:
    """optimization.py:59-156 with clipping by global norm (74), or AdamW with bias correction."""
    leaves, structure = jax.tree.flatten(params())
    excluded = [True, False, True, True]  # dense/bias, dense/kernel, norm/bias, norm/scale
    m = [np.zeros_like(p) for p in leaves]
    v = [np.zeros_like(p) for p in leaves]
    for step in range(steps):
        grads = jax.tree.leaves(gradients(step))
        norm = np.sqrt(sum((g**2).sum() for g in grads))
        grads = [g * 1.0 / max(norm, 1.0) for g in grads]
        lr = rate_of_the_original(step, CONFIG.learning_rate, CONFIG.warmup_steps, TOTAL)
        for i, g in enumerate(grads):
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.999 * v[i] + 0.001 * g**2
            m_hat, v_hat = m[i], v[i]
            if name == "adamw":
                m_hat = m_hat / (1 - 0.9 ** (step + 1))
                v_hat = v_hat / (1 - 0.999 ** (step + 1))
            update = m_hat / (np.sqrt(v_hat) + 1e-6)
            if not excluded[i]:
                update = update + 0.01 * leaves[i]
            leaves[i] = leaves[i] - lr * update
    return jax.tree.unflatten(structure, leaves)


@pytest.mark.parametrize("name", ["bert_adamw", "adamw"])
def test_optimizer_follows_its_source(name):
    config = dataclasses.replace(CONFIG, name=name)
    tx = optimizer.make_optimizer(config, TOTAL)
    values = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), params())
    state = tx.init(values)
    for step in range(6):
        grads = jax.tree.map(lambda g: jnp.asarray(g, jnp.float32), gradients(step))
        updates, state = tx.update(grads, state, values)
        values = jax.tree.map(jnp.add, values, updates)
    expected = reference(name, 6)
    for got, want in zip(jax.tree.leaves(values), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5)


def test_the_two_optimizers_differ():
    both = [jax.tree.leaves(reference(name, 6)) for name in ("bert_adamw", "adamw")]
    assert not np.allclose(both[0][1], both[1][1], rtol=1e-3)


def test_schedule_is_the_originals():
    rate = bert_linear(learning_rate=1e-4, warmup_steps=10_000, total_steps=1_000_000)
    for step in (0, 1, 9_999, 10_000, 10_001, 500_000, 999_999, 1_000_000, 2_000_000):
        want = rate_of_the_original(step, 1e-4, 10_000, 1_000_000)
        np.testing.assert_allclose(rate(step), want, rtol=2e-5, atol=1e-12)
    assert rate(0) == 0
    assert float(rate(10_000)) == pytest.approx(9.9e-5)


def test_schedule_without_warmup_starts_at_the_peak():
    rate = bert_linear(learning_rate=1.0, warmup_steps=0, total_steps=10)
    assert [float(rate(step)) for step in (0, 5, 10)] == [1.0, 0.5, 0.0]


def test_decay_leaves_biases_and_norms_alone():
    assert optimizer.decayed(params()) == {
        "dense": {"kernel": True, "bias": False},
        "norm": {"scale": False, "bias": False},
    }


def test_no_clipping_where_the_norm_is_zero():
    values = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), params())
    grads = jax.tree.map(lambda g: jnp.asarray(g, jnp.float32), gradients(0))
    norm = float(optax.tree.norm(grads))
    assert norm > 1
    for clip, share in ((0.0, 1.0), (1.0, 1 / norm)):
        tx = optimizer.make_optimizer(dataclasses.replace(CONFIG, clip_norm=clip), TOTAL)
        _, state = tx.update(grads, tx.init(values), values)
        (moments,) = (s for s in state if isinstance(s, optimizer.Moments))
        for mu, g in zip(jax.tree.leaves(moments.mu), jax.tree.leaves(grads), strict=True):
            np.testing.assert_allclose(mu, 0.1 * share * g, rtol=1e-5)
