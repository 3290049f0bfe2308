"""Adam's kinds against plain NumPy written from the original's source, and what a phase keeps."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.config.config_files import load
from bert_jax.config.optimizer_settings import OptimizerConfig
from bert_jax.config.optimizers import OPTIMIZERS
from bert_jax.optimizers import adam, optimizer
from bert_jax.optimizers import moments as moments_

CONFIG = load("base").optimizer
RATE = 0.01


def params() -> dict:
    rng = np.random.default_rng(0)
    return {
        "dense": {"kernel": rng.normal(size=(4, 3)), "bias": rng.normal(size=3)},
        "norm": {"scale": rng.normal(size=3), "bias": rng.normal(size=3)},
    }


def gradients(step: int) -> dict:
    rng = np.random.default_rng(step + 1)
    return jax.tree.map(lambda p: 3 * rng.normal(size=p.shape), params())


def reference(name: str, steps: int, on: str = "weights") -> dict:
    """optimization.py:59-156 with clipping by global norm (74), or AdamW with bias correction."""
    leaves, structure = jax.tree.flatten(params())
    excluded = [True, False, True, True]  # dense/bias, dense/kernel, norm/bias, norm/scale
    if on == "all":
        excluded = [False] * 4
    m = [np.zeros_like(p) for p in leaves]
    v = [np.zeros_like(p) for p in leaves]
    for step in range(steps):
        grads = jax.tree.leaves(gradients(step))
        norm = np.sqrt(sum((g**2).sum() for g in grads))
        grads = [g * 1.0 / max(norm, 1.0) for g in grads]
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
            leaves[i] = leaves[i] - RATE * update
    return jax.tree.unflatten(structure, leaves)


def float32(tree: dict) -> dict:
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def axes() -> dict:
    """Only LAMB asks what the dimensions mean."""
    return jax.tree.map(lambda p: ("embed",) * p.ndim, params())


def trained(config: OptimizerConfig, steps: range, values: dict, state: Any) -> tuple[dict, Any]:
    tx = optimizer.make_optimizer(config, axes())
    for step in steps:
        updates, state = tx.update(float32(gradients(step)), state, values)
        values = jax.tree.map(lambda p, u: p - RATE * u, values, updates)
    return values, state


@pytest.mark.parametrize("name", ["bert_adamw", "adamw"])
def test_optimizer_follows_its_source(name):
    config = dataclasses.replace(CONFIG, name=name)
    values = float32(params())
    state = optimizer.make_optimizer(config, axes()).init(values)
    values, _ = trained(config, range(6), values, state)
    expected = reference(name, 6)
    for got, want in zip(jax.tree.leaves(values), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5)


@pytest.mark.parametrize("name", ["bert_adamw", "adamw"])
def test_decay_of_everything_reaches_biases_and_norms(name):
    config = dataclasses.replace(CONFIG, name=name, weight_decay_on="all")
    tx = optimizer.make_optimizer(config, axes())
    state = tx.init(float32(params()))
    others = optimizer.make_optimizer(
        dataclasses.replace(config, weight_decay_on="weights"), axes()
    )
    structures = [jax.tree.structure(s) for s in (state, others.init(float32(params())))]
    assert structures[0] == structures[1]  # a run may change it between two starts
    values, _ = trained(config, range(6), float32(params()), state)
    expected, weights = reference(name, 6, "all"), reference(name, 6)
    for got, want in zip(jax.tree.leaves(values), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5)
    for name in ("scale", "bias"):
        assert not np.allclose(values["norm"][name], weights["norm"][name], rtol=1e-4)


@pytest.mark.parametrize("name", ["lamb", "lamb_albert"])
def test_decay_of_everything_leaves_the_ratio_to_matrices(name):
    """A bias moves by Adam's update and its decay, not scaled to its own norm."""
    config = dataclasses.replace(CONFIG, name=name, weight_decay_on="all", weight_decay=0.5)
    values, grads = float32(params()), float32(gradients(0))
    updates = []
    for change in ({}, {"weight_decay": 0.0}):
        tx = optimizer.make_optimizer(dataclasses.replace(config, **change), axes())
        updates.append(tx.update(grads, tx.init(values), values)[0])
    moved = updates[0]["dense"]["bias"] - updates[1]["dense"]["bias"]
    np.testing.assert_allclose(moved, 0.5 * values["dense"]["bias"], rtol=1e-4, atol=1e-6)


def test_the_two_optimizers_differ():
    both = [jax.tree.leaves(reference(name, 6)) for name in ("bert_adamw", "adamw")]
    assert not np.allclose(both[0][1], both[1][1], rtol=1e-3)


def test_decay_leaves_biases_and_norms_alone():
    assert optimizer.weight_decay_mask(params()) == {
        "dense": {"kernel": True, "bias": False},
        "norm": {"scale": False, "bias": False},
    }


def test_no_clipping_where_the_norm_is_zero():
    values, grads = float32(params()), float32(gradients(0))
    norm = float(optax.tree.norm(grads))
    assert norm > 1
    for clip, share in ((0.0, 1.0), (1.0, 1 / norm)):
        tx = optimizer.make_optimizer(dataclasses.replace(CONFIG, clip_norm=clip), axes())
        _, state = tx.update(grads, tx.init(values), values)
        (moments,) = (s for s in state if isinstance(s, adam.Moments))
        for mu, g in zip(jax.tree.leaves(moments.mu), jax.tree.leaves(grads), strict=True):
            np.testing.assert_allclose(mu, 0.1 * share * g, rtol=1e-5)


def kinds_of_adam(state: Any) -> list:
    """The parts of an optimizer's state that hold moments."""

    def is_adam(part: Any) -> bool:
        return hasattr(part, "mu")

    return [part for part in jax.tree.leaves(state, is_leaf=is_adam) if is_adam(part)]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("count", ["carry", "reset"])
@pytest.mark.parametrize("moments", ["carry", "reset"])
def test_a_phase_starts_with_what_its_config_says(name, moments, count):
    config = dataclasses.replace(CONFIG, name=name, phase_moments=moments, phase_count=count)
    fresh = optimizer.make_optimizer(config, axes()).init(float32(params()))
    values, before = trained(config, range(3), float32(params()), fresh)
    after = jax.jit(lambda state: optimizer.reset_for_phase(state, config))(before)
    abstract = [jax.eval_shape(lambda s=s: s) for s in (before, after)]
    assert abstract[0] == abstract[1]
    (old,), (new,) = kinds_of_adam(before), kinds_of_adam(after)
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(old))
    for field in ("mu", "nu"):
        for was, now in zip(
            jax.tree.leaves(getattr(old, field)), jax.tree.leaves(getattr(new, field)), strict=True
        ):
            np.testing.assert_array_equal(now, was if moments == "carry" else 0 * was)
    if "count" in old._fields:
        assert (int(old.count), int(new.count)) == (3, 3 if count == "carry" else 0)
    trained(config, range(3, 4), values, after)  # takes the next step


def test_a_reset_phase_is_a_new_run_of_the_optimizer():
    """google-research/bert's second phase: parameters from the checkpoint, nothing else."""
    config = dataclasses.replace(CONFIG, name="adamw", phase_moments="reset", phase_count="reset")
    fresh = optimizer.make_optimizer(config, axes()).init(float32(params()))
    values, state = trained(config, range(3), float32(params()), fresh)
    again, _ = trained(config, range(3, 6), values, optimizer.reset_for_phase(state, config))
    anew, _ = trained(config, range(3, 6), values, fresh)
    on, _ = trained(config, range(3, 6), values, state)
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(anew), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.allclose(jax.tree.leaves(again)[0], jax.tree.leaves(on)[0], rtol=1e-3)


def test_carried_moments_with_a_count_of_zero_are_corrected_as_new():
    """NVIDIA's second phase: its first update divides the moments by 1 - b, as a run's first."""
    config = dataclasses.replace(CONFIG, name="adamw", phase_count="reset", weight_decay=0.0)
    tx = optimizer.make_optimizer(config, axes())
    values, state = trained(config, range(3), float32(params()), tx.init(float32(params())))
    grads = float32(gradients(3))
    norm = float(optax.tree.norm(grads))
    (adam,) = kinds_of_adam(state)
    updates, _ = tx.update(grads, optimizer.reset_for_phase(state, config), values)
    g = np.asarray(grads["dense"]["kernel"]) / max(norm, 1.0)
    mean = (0.9 * adam.mu["dense"]["kernel"] + 0.1 * g) / (1 - 0.9)
    square = (0.999 * adam.nu["dense"]["kernel"] + 0.001 * g**2) / (1 - 0.999)
    want = mean / (np.sqrt(square) + 1e-6)
    np.testing.assert_allclose(updates["dense"]["kernel"], want, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_moments_of_half_the_size_train_alike(name):
    """A quadratic's way down, 60 steps in both types; all of it in float32 but what is kept."""
    target, ends, sizes = float32(params()), {}, {}
    for dtype in ("float32", "bfloat16"):
        config = dataclasses.replace(CONFIG, name=name, moment_dtype=dtype, weight_decay=0.0)
        tx = optimizer.make_optimizer(config, axes())

        @jax.jit
        def one(values, state, step, tx=tx):
            grads = jax.tree.map(jnp.subtract, values, target)
            updates, state = tx.update(grads, state, values, step=step)
            return jax.tree.map(lambda p, u: p - RATE * u, values, updates), state

        values = jax.tree.map(jnp.ones_like, target)
        state = tx.init(values)
        (start,) = kinds_of_adam(state)
        for step in range(60):
            values, state = one(values, state, step)
        (adam,) = kinds_of_adam(state)
        kept = jax.tree.leaves((start.mu, start.nu, adam.mu, adam.nu))
        assert {x.dtype for x in kept} == {jnp.dtype(dtype)}
        sizes[dtype] = sum(x.nbytes for x in jax.tree.leaves((adam.mu, adam.nu)))
        ends[dtype] = values
    assert sizes["bfloat16"] * 2 == sizes["float32"]
    moved = optax.tree.norm(jax.tree.map(lambda v: v - 1, ends["float32"]))
    apart = optax.tree.norm(jax.tree.map(jnp.subtract, ends["float32"], ends["bfloat16"]))
    assert 0 < float(apart) < 0.01 * float(moved)


def test_a_second_moment_in_bfloat16_falls_as_it_should():
    """To nearest, .999 of it would be it, for ever."""
    config = dataclasses.replace(CONFIG, moment_dtype="bfloat16", clip_norm=0.0)
    values = {"kernel": jnp.zeros((64, 64))}
    tx = optimizer.make_optimizer(config, {"kernel": ("embed", "embed")})
    _, state = tx.update({"kernel": jnp.ones((64, 64))}, tx.init(values), values, step=0)
    update = jax.jit(tx.update)
    for step in range(1, 301):
        _, state = update(jax.tree.map(jnp.zeros_like, values), state, values, step=step)
    (adam,) = kinds_of_adam(state)
    nu = np.asarray(adam.nu["kernel"], np.float64)
    np.testing.assert_allclose(nu.mean(), 0.001 * 0.999**300, rtol=0.005)
    assert np.unique(nu).size > 4  # each element by draws of its own


def test_rounding_at_random_leaves_what_is_not_finite():
    x = jnp.array([jnp.inf, -jnp.inf, jnp.nan, 0.0, 1.0], jnp.float32)
    for key in range(20):
        got = np.asarray(moments_._round_at_random(x, jnp.uint32(key)), np.float32)
        np.testing.assert_array_equal(got, np.asarray(x))
