"""Muon: against float64 NumPy matrix by matrix, and shared out over the devices of a mesh."""

import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small_step import CORPUS, mesh_of, place, rows_of, small

from bert_jax.config.schema import Config
from bert_jax.errors import UserError
from bert_jax.objectives.known_objectives import chosen
from bert_jax.objectives.pretraining_model import declare
from bert_jax.optimizers import newton_schulz, optimizer
from bert_jax.parallel import partition
from bert_jax.training.state_sharding import param_specs
from bert_jax.training.step import make_step_functions

MUON = {"name": "muon", "eps": 1e-6, "weight_decay": 0.1}
# Mesh, how many of 8, 2 and 2 matrices of one shape a device has at most, and whether its results
# are gathered: 3 divides no dimension but that of query, key and value, so the rest is replicated.
MESHES = [
    pytest.param({"data": 8}, 1, False, id="data"),
    pytest.param({"data": 2, "fsdp": 2, "tensor": 2}, 1, False, id="data-fsdp-tensor"),
    pytest.param({"slice": 2, "data": 4}, 2, False, id="slices", marks=pytest.mark.slow),
    pytest.param({"data": 3}, 2, True, id="qkv", marks=pytest.mark.slow),
]


def split(mesh: dict, **changes: Any) -> Config:
    compute = {"shard_optimizer": True, "unroll_layers": 0}
    return small(optimizer=MUON | changes, mesh=mesh, compute=compute)


def declared(config: Config) -> tuple[Any, Any]:
    """Axes and shapes of the parameters."""
    _, abstract = declare(config.model, config.compute, chosen(config.data))
    return partition.param_axes(abstract), nnx.to_pure_dict(abstract)


def drawn(shapes: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)


def layers_of(tree: Any) -> dict[str, np.ndarray]:
    attention, mlp = (tree["encoder"]["layers"][part] for part in ("attention", "mlp"))
    kernels = {"qkv": attention["qkv"], "output": attention["output"], **mlp}
    return {name: kernels[name]["kernel"] for name in ("qkv", "output", "up", "down")}


def matrices(tree: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Every matrix that Muon moves, one by one."""
    for name, stack in layers_of(tree).items():
        for i, layer in enumerate(np.asarray(stack)):
            if name == "qkv":
                for k in range(3):
                    yield f"{i}/{'qkv'[k]}", layer[:, k].reshape(len(layer), -1)
            else:
                yield f"{i}/{name}", layer.reshape(-1, layer.shape[-1])


def traces(state: Any) -> list[Any]:
    """Muon's momentum in the state of an optimizer."""

    def is_trace(part: Any) -> bool:
        return isinstance(part, optax.TraceState)

    parts = jax.tree.leaves(state, is_leaf=is_trace)
    return [part.trace for part in parts if is_trace(part)]


def jordan(m: np.ndarray) -> np.ndarray:
    """Jordan's quintic iteration, as he wrote it, in float64."""
    x = m / np.linalg.norm(m)
    x = x.T if len(m) > len(m.T) else x
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if len(m) > len(m.T) else x


def reference(gradients: list[Any], params: Any) -> dict[str, np.ndarray]:
    """The last update: momentum .95 in Nesterov's form, times 10, and decay."""
    momentum = {name: np.zeros_like(m, np.float64) for name, m in matrices(params)}
    updates = {}
    for tree in gradients:
        norm = np.sqrt(sum(np.square(g, dtype=np.float64).sum() for g in jax.tree.leaves(tree)))
        for name, g in matrices(tree):
            clipped = g.astype(np.float64) / max(norm, 1.0)
            momentum[name] = 0.95 * momentum[name] + clipped
            updates[name] = 10 * jordan(0.95 * momentum[name] + clipped)
    return {name: updates[name] + 0.1 * p for name, p in matrices(params)}


def test_every_matrix_moves_as_in_float64() -> None:
    config = small(optimizer=MUON)
    axes, shapes = declared(config)
    params, gradients = drawn(shapes, 0), [drawn(shapes, 1 + i) for i in range(3)]
    for name in ("muon", "adamw"):
        tx = optimizer.make_optimizer(dataclasses.replace(config.optimizer, name=name), axes)
        state, step = tx.init(params), jax.jit(tx.update)
        for tree in gradients:
            updates, state = step(tree, state, params)
        if name == "muon":
            ours = updates
    wanted = reference(gradients, params)
    assert len(wanted) == 2 * 6
    for name, update in matrices(ours):
        np.testing.assert_allclose(update, wanted[name], atol=1e-4, err_msg=name)
    moved_by_adam = jax.tree.map(np.array_equal, ours, updates)
    assert not any(layers_of(moved_by_adam).values())
    assert jax.tree.leaves(moved_by_adam).count(False) == 4


@pytest.mark.parametrize(("mesh", "share", "gathered"), MESHES)
def test_whole_matrices_are_shared_out(mesh: dict, share: int, gathered: bool) -> None:
    """By all-to-all, and no device multiplies more matrices than its share."""
    config = split(mesh)
    (axes, shapes), devices = declared(config), mesh_of(config)
    specs = param_specs(config, devices, axes, shapes)
    storage = partition.on_mesh(devices, specs.storage)
    gradients, params = drawn(shapes, 0), drawn(shapes, 1)

    def updates(gradients: Any, params: Any, storage: Any = None) -> Any:
        tx = optimizer.make_optimizer(config.optimizer, axes, storage)
        return tx.update(gradients, tx.init(params), params)[0]

    many = jax.jit(functools.partial(updates, storage=storage), out_shardings=storage)
    placed = [jax.device_put(tree, storage) for tree in (gradients, params)]
    compiled = many.lower(*placed).compile()
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4),
        compiled(*placed),
        jax.jit(updates)(gradients, params),
    )
    text = compiled.as_text()
    stacks = [shape.split(",") for shape in re.findall(r"= f32\[([\d,]+)\]\S* dot\(", text)]
    assert max(int(dims[0]) if len(dims) > 2 else 1 for dims in stacks) == share
    assert (" all-gather(" in text) == gathered


def test_momentum_is_stored_as_its_parameter_is() -> None:
    config = split({"data": 2, "fsdp": 2, "tensor": 2}, moment_dtype="bfloat16")
    state = make_step_functions(config, mesh_of(config), CORPUS).abstract
    momentum = layers_of(*traces(state["opt"]))
    for name, parameter in layers_of(state["params"]).items():
        assert momentum[name].dtype == jnp.bfloat16
        assert momentum[name].sharding == parameter.sharding
        assert not parameter.sharding.is_fully_replicated


def test_momentum_in_bfloat16_trains_alike() -> None:
    ends, gradients = [], np.random.default_rng(0).normal(size=(5, 2, 8, 12)).astype(np.float32)
    for dtype in ("float32", "bfloat16"):
        config = small(optimizer=MUON | {"moment_dtype": dtype, "weight_decay": 0.0}).optimizer
        tx = optimizer.make_optimizer(config, {"kernel": ("layers", "embed", "mlp")})
        state, step = tx.init({"kernel": jnp.ones((2, 8, 12))}), jax.jit(tx.update)
        for i in range(20):
            tree = {"kernel": gradients[i // 4]}
            updates, state = step(tree, state, tree, step=i)
        ends.append(np.asarray(updates["kernel"]))
    apart, length = (float(np.linalg.norm(x)) for x in (ends[0] - ends[1], ends[0]))
    assert 0 < apart < 0.01 * length


@pytest.mark.parametrize("moments", ["carry", "reset"])
def test_a_phase_starts_with_its_momentum_or_none(moments: str) -> None:
    config = small(optimizer=MUON | {"phase_moments": moments}).optimizer
    params = {"kernel": jnp.ones((2, 4, 3))}
    tx = optimizer.make_optimizer(config, {"kernel": ("layers", "embed", "mlp")})
    _, state = jax.jit(tx.update)(params, tx.init(params), params)
    (trace,) = traces(optimizer.reset_for_phase(state, config))
    np.testing.assert_array_equal(np.unique(trace["kernel"]) > 0, moments == "carry")


def test_a_matrix_without_sides_is_refused_in_one_line() -> None:
    axes = {"kernel": ("layers", "heads", "embed", "head_dim")}
    with pytest.raises(UserError, match=r"muon.*'heads', 'embed', 'head_dim'.*or the last$"):
        optimizer.make_optimizer(small(optimizer=MUON).optimizer, axes)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [{"data": 8}, {"data": 2, "fsdp": 2, "tensor": 2}])
def test_ten_steps_have_the_same_loss_on_one_and_eight_devices(mesh: dict) -> None:
    """Losses, not parameters: Newton-Schulz steps enlarge rounding errors of small gradients."""
    losses = [ten_losses(config) for config in (small(optimizer=MUON), split(mesh))]
    assert losses[0][-1] < losses[0][0] - 1
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


def ten_losses(config: Config) -> list[float]:
    mesh, losses = mesh_of(config), []
    with jax.set_mesh(mesh):
        program = make_step_functions(config, mesh, CORPUS)
        state, batch = program.init(), place(program, rows_of(config))
        for _ in range(10):
            state, metrics = program.train(state, batch)
            losses.append(float(metrics["loss"]))
    return losses


@pytest.mark.parametrize("shape", [(24, 96), (96, 24), (24, 48), (24, 24)])
def test_newton_schulz_steps_equal_float64_for_every_shape(shape: tuple[int, int]) -> None:
    """With singular values that fall steeply, as those of gradients do."""
    rng, size = np.random.default_rng(0), min(shape)
    left, right = (np.linalg.qr(rng.normal(size=(side, size)))[0] for side in shape)
    matrices = np.stack([left * (1.0 + np.arange(size)) ** -power @ right.T for power in (0, 1, 3)])
    ours = jax.jit(newton_schulz.orthogonalize)(matrices.astype(np.float32))
    for matrix, result in zip(matrices, ours, strict=True):
        np.testing.assert_allclose(result, jordan(matrix), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(24, 96), (96, 24), (24, 24), (24, 36)])
def test_newton_schulz_steps_are_those_of_optax(shape: tuple[int, int]) -> None:
    matrices = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
    numbers = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)
    muon = optax.contrib.scale_by_muon(beta=0, nesterov=False, weight_dimension_numbers=numbers)
    theirs, _ = muon.update(matrices, muon.init(matrices))
    np.testing.assert_allclose(newton_schulz.orthogonalize(matrices), theirs, atol=1e-5)
