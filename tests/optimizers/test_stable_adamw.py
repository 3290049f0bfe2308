"""StableAdamW against plain NumPy that knows only separate tensors, by the paper's algorithm."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.config.config_files import load
from bert_jax.config.optimizer_settings import OptimizerConfig
from bert_jax.optimizers import optimizer

CONFIG = dataclasses.replace(
    load("base").optimizer, name="stable_adamw", b2=0.98, weight_decay=0.1, clip_norm=0.0
)
LAYERS, WORDS, PADDING, RATE, SPIKE = 3, 6, 2, 0.02, 9
AXES = {
    "layers": {
        "norm": {"scale": ("layers", "norm")},
        "qkv": {"kernel": ("layers", "embed", "qkv", "heads", "head_dim")},
        "up": {"bias": ("layers", "mlp"), "kernel": ("layers", "embed", "mlp")},
    },
    "word": ("vocab", "table"),
}


def stacked(seed: int, scale: float = 1.0) -> dict:
    """Rows of padding are zero, in parameters and in gradients."""
    draw = np.random.default_rng(seed).normal
    word = draw(size=(WORDS + PADDING, 4))
    word[WORDS:] = 0
    tree = {
        "layers": {
            "norm": {"scale": draw(size=(LAYERS, 4))},
            "qkv": {"kernel": draw(size=(LAYERS, 4, 3, 2, 2))},
            "up": {"bias": draw(size=(LAYERS, 5)), "kernel": draw(size=(LAYERS, 4, 5))},
        },
        "word": word,
    }
    return jax.tree.map(lambda x: scale * x, tree)


def gradients(step: int) -> dict:
    """Of one size, but for one of 30 times that in the second layer's matrices."""
    tree = stacked(step + 1)
    if step == SPIKE:
        for x in (tree["layers"]["qkv"]["kernel"], tree["layers"]["up"]["kernel"]):
            x[1] *= 30
    return tree


def without_padding(tree: dict) -> dict:
    return {**tree, "word": tree["word"][:WORDS]}


def separate(tree: dict) -> dict[str, np.ndarray]:
    """The tensors of a published model, query, key and value in one, without padding."""
    found = {"word": np.asarray(tree["word"])[:WORDS]}
    for path, x in jax.tree_util.tree_leaves_with_path(tree["layers"]):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        found |= {f"{i}/{name}": np.asarray(x)[i] for i in range(LAYERS)}
    return found


def reference(
    params: dict[str, np.ndarray], grads: list[dict[str, np.ndarray]]
) -> tuple[dict[str, np.ndarray], dict[str, list[float]]]:
    """Algorithm 2 of arXiv 2304.13013 in float64; and the RMS of each tensor in each step."""
    params = {k: v.astype(np.float64) for k, v in params.items()}
    v, u = ({k: np.zeros_like(p) for k, p in params.items()} for _ in range(2))
    found: dict[str, list[float]] = {k: [] for k in params}
    for t, of_step in enumerate(grads, start=1):
        b1, b2 = (b * (1 - b ** (t - 1)) / (1 - b**t) for b in (0.9, 0.98))
        for k, g in of_step.items():
            v[k] = b1 * v[k] + (1 - b1) * g
            u[k] = b2 * u[k] + (1 - b2) * g**2
            rms = np.sqrt(np.mean(g**2 / np.maximum(u[k], 1e-6**2)))
            found[k].append(float(rms))
            rate = RATE / max(1.0, rms)
            decay = 0.0 if "bias" in k or "norm" in k else 0.1
            params[k] = params[k] - rate * (v[k] / (np.sqrt(u[k]) + 1e-6) + decay * params[k])
    return params, found


def float32(tree: dict) -> dict:
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def trained(config: OptimizerConfig, grads: list[dict], scale: float = 1.0) -> dict:
    """Parameters that start at `scale` times those of `stacked(0)`."""
    params = stacked(0, scale)
    params["word"] = params["word"][: len(grads[0]["word"])]
    params = float32(params)
    tx = optimizer.make_optimizer(config, AXES, vocab_size=WORDS)
    state = tx.init(params)
    for g in grads:
        updates, state = tx.update(float32(g), state, params)
        params = jax.tree.map(lambda p, u: p - RATE * u, params, updates)
    return params


def test_it_is_the_papers_of_separate_tensors() -> None:
    grads = [gradients(step) for step in range(SPIKE + 2)]
    want, rms = reference(separate(stacked(0)), [separate(g) for g in grads])
    assert rms["1/qkv/kernel"][SPIKE] > 2.5 > 1.5 > rms["0/qkv/kernel"][SPIKE]
    got = separate(trained(CONFIG, grads))
    for key, values in got.items():
        np.testing.assert_allclose(values, want[key], rtol=1e-4, atol=1e-6, err_msg=key)


def test_gradients_that_shrink_are_adamw() -> None:
    grads = [stacked(1, scale=0.9**step) for step in range(4)]
    _, rms = reference(separate(stacked(0)), [separate(g) for g in grads])
    assert max(max(found[1:]) for found in rms.values()) < 1
    ours = trained(CONFIG, grads)
    adamw = trained(dataclasses.replace(CONFIG, name="adamw"), grads)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), ours, adamw)


def test_padding_stays_zero_and_changes_nothing() -> None:
    grads = [gradients(step) for step in range(4)]
    padded = trained(CONFIG, grads)["word"]
    assert not np.asarray(padded[WORDS:]).any()
    want, _ = reference(separate(stacked(0)), [separate(g) for g in grads])
    np.testing.assert_allclose(padded[:WORDS], want["word"], rtol=1e-4, atol=1e-6)


def growing(steps: int) -> list[dict]:
    """Gradients of the words that grow, so that their RMS is above 1."""
    grads = [gradients(step) for step in range(steps)]
    for step, tree in enumerate(grads):
        tree["word"] *= 3.0**step
    return grads


def test_rows_that_start_at_zero_and_were_not_seen_count() -> None:
    """Tables of a discriminator's own start so; unseen words have no second moment either."""
    grads = growing(4)
    for step, tree in enumerate(grads):
        tree["word"][1 + step :] = 0
    want, rms = reference(separate(stacked(0, 0.0)), [separate(g) for g in grads])
    assert max(rms["word"]) > 1
    got = trained(CONFIG, grads, scale=0.0)["word"]
    assert not np.asarray(got[WORDS:]).any()
    np.testing.assert_allclose(got[:WORDS], want["word"], rtol=1e-4, atol=1e-6)


def test_unseen_words_with_the_smallest_eps_get_numbers() -> None:
    """The square of eps is 0 in float32."""
    grads = growing(4)
    for tree in grads:
        tree["word"][1:] = 0
    got = trained(dataclasses.replace(CONFIG, eps=1e-25), grads)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(got))


def test_padding_changes_nothing_of_moments_in_bfloat16() -> None:
    config, grads = dataclasses.replace(CONFIG, moment_dtype="bfloat16"), growing(4)
    padded, exact = trained(config, grads), trained(config, [without_padding(g) for g in grads])
    np.testing.assert_allclose(padded["word"][:WORDS], exact["word"], rtol=1e-6)


def test_means_are_global_under_sharding() -> None:
    mesh = jax.make_mesh((8,), ("tensor",), axis_types=(jax.sharding.AxisType.Auto,))
    rng = np.random.default_rng(0)
    draws = [jnp.asarray(rng.normal(size=(2, 4, 16)), jnp.float32) for _ in range(3)]
    params, *grads = ({"up": {"kernel": x}} for x in draws)
    grads[1]["up"]["kernel"] *= jnp.where(jnp.arange(16) < 2, 20, 1)[None, None]
    axes = {"up": {"kernel": ("layers", "embed", "mlp")}}

    def second(params: dict, grads: list[dict], config: OptimizerConfig = CONFIG) -> dict:
        tx = optimizer.make_optimizer(config, axes)
        _, state = tx.update(grads[0], tx.init(params), params)
        return tx.update(grads[1], state, params)[0]

    split = NamedSharding(mesh, P(None, None, "tensor"))
    (one,) = jax.tree.leaves(jax.jit(second)(params, grads))
    (parts,) = jax.tree.leaves(jax.jit(second)(*jax.device_put((params, grads), split)))
    assert parts.addressable_shards[0].data.shape == (2, 4, 2)
    np.testing.assert_allclose(parts, one, rtol=1e-6)
    (adamw,) = jax.tree.leaves(second(params, grads, dataclasses.replace(CONFIG, name="adamw")))
    ratio = np.median(np.reshape(adamw / one, (2, -1)), axis=1)[:, None, None]
    assert ratio.max() > 1.04
    np.testing.assert_allclose(ratio * one, adamw, rtol=1e-5, atol=1e-6)
