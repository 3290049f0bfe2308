"""Both gradient engines, on a loss small enough to differentiate at a glance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from small_step import mesh_of, small

from bert_jax.parallel.global_batch import batch_sharding
from bert_jax.training.gradients import data_parallel_gradients, partitioned_gradients
from bert_jax.training.state_sharding import ParamSpecs

ROWS = 16
X = np.random.default_rng(0).normal(size=(ROWS, 8)).astype(np.float32)
PARAMS = {
    "kernel": np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32),
    "bias": np.zeros(4, np.float32),
}


def loss_fn(params: dict, frozen: dict, batch: dict, key: jax.Array, counts: jax.Array) -> tuple:
    """The sum of squares over the rows of this batch, divided by all rows."""
    y = jnp.tanh(batch["x"] @ (params["kernel"] + frozen["kernel"]) + params["bias"][None])
    loss = (y**2).sum() / counts
    return loss, {"loss": loss}


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("split", [P(), P("data")], ids=["replicated", "sharded"])
@pytest.mark.parametrize("engine", [data_parallel_gradients, partitioned_gradients])
def test_gradients_are_those_of_the_global_batch(engine, split: P, parts: int) -> None:
    """Whatever the engine, the sharding of the parameters and the number of micro-batches."""
    rows = batch_sharding(mesh_of(small(mesh={"data": 4})))
    replicated = {"kernel": P(), "bias": P()}
    storage = {"kernel": split, "bias": P()}
    specs = ParamSpecs(replicated, storage, {"kernel": False, "bias": False})
    second = {"kernel": PARAMS["kernel"][::-1].copy()}
    frozen = ParamSpecs({"kernel": P()}, {"kernel": split}, {"kernel": False})
    gradients_of = engine(loss_fn, rows, specs, frozen, "float32")
    counts, key = jnp.float32(ROWS), jnp.uint32(0)
    run = jax.jit(gradients_of, static_argnums=5)
    with jax.set_mesh(rows.mesh):
        (loss, _), gradients = run(PARAMS, second, {"x": X}, key, counts, parts)

    wanted = jax.grad(lambda p: loss_fn(p, second, {"x": X}, key, counts)[0])(PARAMS)
    np.testing.assert_allclose(loss, loss_fn(PARAMS, second, {"x": X}, key, counts)[0], rtol=1e-5)
    for name, gradient in gradients.items():
        shards = [np.asarray(s.data) for s in gradient.addressable_shards]
        index = [s.index for s in gradient.addressable_shards]
        for where, shard in zip(index, shards, strict=True):  # on every device, not on the first
            np.testing.assert_allclose(shard, wanted[name][where], rtol=1e-5, atol=1e-6)
