"""LAMB against plain NumPy that knows only separate matrices, by the names of the original."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from small import run_config

from bert_jax.config.config_files import load
from bert_jax.convert import weights as names
from bert_jax.objectives.known_objectives import chosen
from bert_jax.objectives.pretraining_model import declare, init_params
from bert_jax.optimizers import lamb, optimizer
from bert_jax.parallel import partition

CONFIG = dataclasses.replace(load("base").optimizer, weight_decay=0.1)
LAYERS, HIDDEN, HEADS, DIM, WIDE, WORDS, PADDING = 3, 4, 2, 2, 5, 6, 2
RATE, STEPS = 0.02, 5
AXES = {
    "layers": {
        "qkv": {
            "kernel": ("layers", "embed", "qkv", "heads", "head_dim"),
            "bias": ("layers", "qkv", "heads", "head_dim"),
        },
        "norm": {"scale": ("layers", "norm"), "bias": ("layers", "norm")},
        "up": {"kernel": ("layers", "embed", "mlp"), "bias": ("layers", "mlp")},
    },
    "word": ("vocab", "table"),
}
# bias correction, ratio on LayerNorm and biases, bounds of the ratio: algorithms as published.
PUBLISHED = {
    "lamb": (True, False, None),
    "lamb_albert": (False, False, None),
    "lamb_all": (True, True, None),
    "lamb_clamped": (False, True, (0.01, 0.3)),
}


def stacked(seed: int, scale: float = 1.0) -> dict:
    """Layers of very different sizes, and among query, key and value too; two rows of padding."""
    rng = np.random.default_rng(seed)
    by_layer = np.array([0.01, 1.0, 30.0])[:LAYERS]
    by_matrix = np.array([0.1, 1.0, 10.0])[:, None, None]

    def draw(*shape: int) -> np.ndarray:
        values = scale * rng.normal(size=shape)
        return values * by_layer.reshape(-1, *(1,) * (len(shape) - 1))

    word = rng.normal(size=(WORDS + PADDING, HIDDEN))
    word[WORDS:] = 0
    return {
        "layers": {
            "qkv": {
                "kernel": draw(LAYERS, HIDDEN, 3, HEADS, DIM) * by_matrix,
                "bias": draw(LAYERS, 3, HEADS, DIM) * by_matrix,
            },
            "norm": {"scale": draw(LAYERS, HIDDEN), "bias": draw(LAYERS, HIDDEN)},
            "up": {"kernel": draw(LAYERS, HIDDEN, WIDE), "bias": np.zeros((LAYERS, WIDE))},
        },
        "word": word,
    }


def separate(tree: dict) -> dict[str, np.ndarray]:
    """The matrices as the original has them: one variable for each, named by layer."""
    layers, found = tree["layers"], {"embeddings/word": np.asarray(tree["word"])}
    for i in range(LAYERS):
        for j, name in enumerate(("query", "key", "value")):
            found[f"{i}/{name}/kernel"] = np.asarray(layers["qkv"]["kernel"])[i, :, j]
            found[f"{i}/{name}/bias"] = np.asarray(layers["qkv"]["bias"])[i, j]
        found[f"{i}/LayerNorm/gamma"] = np.asarray(layers["norm"]["scale"])[i]
        found[f"{i}/LayerNorm/beta"] = np.asarray(layers["norm"]["bias"])[i]
        found[f"{i}/intermediate/kernel"] = np.asarray(layers["up"]["kernel"])[i]
        found[f"{i}/intermediate/bias"] = np.asarray(layers["up"]["bias"])[i]
    return found


def reference(name: str, params: dict[str, np.ndarray], gradients: list[dict]) -> dict:
    """LAMB one matrix after the other in float64, gradients clipped to global norm 1 before."""
    correct, everywhere, bounds = PUBLISHED[name]
    params = {k: v.astype(np.float64) for k, v in params.items()}
    m = {k: np.zeros_like(v) for k, v in params.items()}
    v = {k: np.zeros_like(v) for k, v in params.items()}
    for t, grads in enumerate(gradients, start=1):
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads.values()))
        for k, p in params.items():
            g = grads[k] / max(1.0, norm)
            m[k] = 0.9 * m[k] + 0.1 * g
            v[k] = 0.999 * v[k] + 0.001 * g**2
            mean, square = m[k], v[k]
            if correct:
                mean, square = mean / (1 - 0.9**t), square / (1 - 0.999**t)
            update = mean / (np.sqrt(square) + 1e-6)
            excluded = re.search("LayerNorm|bias", k) is not None
            if not excluded:
                update = update + 0.1 * p
            ratio = 1.0
            if (everywhere or not excluded) and np.linalg.norm(p) and np.linalg.norm(update):
                ratio = np.linalg.norm(p) / np.linalg.norm(update)
                if bounds:
                    ratio = min(max(ratio, bounds[0]), bounds[1])
            params[k] = p - RATE * ratio * update
    return params


def float32(tree: dict) -> dict:
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def gradients(step: int) -> dict:
    """Zero in the padded rows, as the loss gives them."""
    return stacked(step + 1, scale=0.3)


def trained(tx: optax.GradientTransformation, params: dict, steps: int) -> dict:
    state = tx.init(params)
    for step in range(steps):
        updates, state = tx.update(float32(gradients(step)), state, params)
        params = jax.tree.map(lambda p, u: p - RATE * u, params, updates)
    return params


@pytest.mark.parametrize(
    "name",
    [
        name if i in (0, len(PUBLISHED) - 1) else pytest.param(name, marks=pytest.mark.slow)
        for i, name in enumerate(PUBLISHED)
    ],
)
def test_lamb_is_that_of_separate_matrices(name):
    tx = optimizer.make_optimizer(dataclasses.replace(CONFIG, name=name), AXES)
    got = trained(tx, float32(stacked(0)), STEPS)
    want = reference(name, separate(stacked(0)), [separate(gradients(s)) for s in range(STEPS)])
    for key, values in separate(got).items():
        np.testing.assert_allclose(values, want[key], rtol=1e-4, atol=1e-6, err_msg=key)


def test_the_variants_differ_from_each_other():
    """So that the test above could not pass with one for another."""
    grads = [separate(gradients(s)) for s in range(STEPS)]
    ends = [reference(name, separate(stacked(0)), grads) for name in PUBLISHED]
    for i, one in enumerate(ends):
        for other in ends[:i]:
            assert any(not np.allclose(one[k], other[k], rtol=1e-2) for k in one)


def test_padded_rows_stay_zero():
    for name in PUBLISHED:
        tx = optimizer.make_optimizer(dataclasses.replace(CONFIG, name=name), AXES)
        word = trained(tx, float32(stacked(0)), STEPS)["word"]
        assert not np.asarray(word[WORDS:]).any()
        assert np.asarray(word[:WORDS]).all()


def unclipped(name: str, axes: dict) -> optax.GradientTransformation:
    return optimizer.make_optimizer(dataclasses.replace(CONFIG, name=name, clip_norm=0.0), axes)


def theirs() -> optax.GradientTransformation:
    """optax.lamb as a direction (its learning rate has the other sign) with the same decay."""
    return optax.lamb(-1.0, eps=1e-6, weight_decay=0.1, mask=optimizer.weight_decay_mask)


def test_lamb_all_on_separate_tensors_is_optax():
    axes = jax.tree.map(
        lambda names: ("plain",) * len(names), AXES, is_leaf=lambda x: isinstance(x, tuple)
    )
    params = float32(stacked(0))
    ours = trained(unclipped("lamb_all", axes), params, STEPS)
    for got, want in zip(
        jax.tree.leaves(ours), jax.tree.leaves(trained(theirs(), params, STEPS)), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_optax_on_stacked_tensors_is_not_lamb():
    """The trap: one ratio for all layers and all of query, key and value."""
    params = float32(stacked(0))
    ours = separate(trained(unclipped("lamb_all", AXES), params, 1))
    optax_ = separate(trained(theirs(), params, 1))
    before = separate(params)
    for key in ("0/query/kernel", "0/intermediate/kernel", "2/value/bias"):
        one, other = (np.linalg.norm(x[key] - before[key]) for x in (ours, optax_))
        assert not 0.5 < one / other < 2
    # What is neither stacked nor fused is the same.
    np.testing.assert_allclose(ours["embeddings/word"], optax_["embeddings/word"], rtol=1e-5)


@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_a_step_is_as_long_as_the_matrix(seed: int, scale: float) -> None:
    """Without bounds ‖ratio·u‖ = ‖p‖ for every matrix of every layer, and 1·u where p is zero."""
    params = float32(stacked(seed, scale))
    tx = lamb.scale_by_ratio(lamb.VARIANTS["lamb_all"], AXES, optimizer.weight_decay_mask)
    raw = float32(stacked(seed + 1))
    raw["layers"]["up"]["bias"] = jnp.ones_like(raw["layers"]["up"]["bias"])
    updates, _ = tx.update(raw, tx.init(params), params)
    given_, before = separate(updates), separate(params)
    for key, matrix in before.items():
        if key.endswith("intermediate/bias"):
            np.testing.assert_array_equal(given_[key], 1)
        else:
            length = np.linalg.norm(matrix)
            np.testing.assert_allclose(np.linalg.norm(given_[key]), length, rtol=1e-5)


def test_a_zero_update_stays_zero():
    params = float32(stacked(0))
    nothing = jax.tree.map(jnp.zeros_like, params)
    for variant in lamb.VARIANTS.values():
        tx = lamb.scale_by_ratio(variant, AXES, optimizer.weight_decay_mask)
        updates, _ = tx.update(nothing, tx.init(params), params)
        for leaf in jax.tree.leaves(updates):
            np.testing.assert_array_equal(leaf, 0)


def test_norms_are_global_under_sharding():
    mesh = jax.make_mesh((8,), ("tensor",), axis_types=(jax.sharding.AxisType.Auto,))
    rng = np.random.default_rng(0)
    params = {"up": {"kernel": jnp.asarray(rng.normal(size=(2, 4, 16)), jnp.float32)}}
    grads = {"up": {"kernel": jnp.asarray(rng.normal(size=(2, 4, 16)), jnp.float32)}}
    tx = unclipped("lamb", {"up": {"kernel": ("layers", "embed", "mlp")}})
    step = jax.jit(lambda g, p: tx.update(g, tx.init(p), p)[0])
    split = NamedSharding(mesh, P(None, None, "tensor"))
    (whole,) = jax.tree.leaves(step(grads, params))
    (parts,) = jax.tree.leaves(step(jax.device_put(grads, split), jax.device_put(params, split)))
    assert parts.addressable_shards[0].data.shape == (2, 4, 2)
    np.testing.assert_allclose(parts, whole, rtol=1e-6)
    (p,), (g,) = (np.asarray(jax.tree.leaves(tree)) for tree in (params, grads))
    update = g / (np.abs(g) + 1e-6) + 0.1 * p  # Adam's first, its bias corrected
    length_p, length_u = (np.linalg.norm(x, axis=(1, 2), keepdims=True) for x in (p, update))
    np.testing.assert_allclose(parts, update * length_p / length_u, rtol=1e-5)


def test_the_model_names_what_is_stacked_and_fused():
    """A step over the real parameters is as long as each tensor of transformers' checkpoint."""
    config = run_config()
    model = dataclasses.replace(config.model, pad_vocab_to_multiple_of=1)
    _, abstract = declare(model, config.compute, chosen(config.data))
    shapes = jax.eval_shape(
        lambda: init_params(model, config.compute, chosen(config.data), jax.random.key(0))
    )
    rng = np.random.default_rng(0)
    params, raw = (
        jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), shapes)
        for _ in range(2)
    )
    axes = partition.param_axes(abstract)
    tx = lamb.scale_by_ratio(lamb.VARIANTS["lamb_all"], axes, optimizer.weight_decay_mask)
    updates, _ = tx.update(raw, tx.init(params), params)
    before, after = (names.to_transformers(tree, model) for tree in (params, updates))
    for tensor, values in before.items():
        length = np.linalg.norm(values)
        np.testing.assert_allclose(np.linalg.norm(after[tensor]), length, rtol=1e-5, err_msg=tensor)
