"""The table of mesh axes, and which rows of a batch a process makes."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from bert_jax import heads, sharding
from bert_jax.config_file import load


def test_every_parameter_of_every_model_is_covered():
    for name in ("tiny", "base", "large"):
        config = load(name)
        _, abstract = heads.declare(config.model, config.compute, config.objectives)
        specs = sharding.param_specs(abstract)
        sizes = jax.tree.map(lambda x: x.ndim, jax.tree.leaves(abstract))
        dimensions = [len(s) for s in jax.tree.leaves(specs, is_leaf=lambda s: isinstance(s, P))]
        assert dimensions == sizes


def test_an_unknown_axis_is_an_error():
    with pytest.raises(KeyError, match="hidden"):
        sharding.spec("batch", "hidden")


def test_all_mesh_axes_of_the_table_exist():
    used = {
        axis
        for value in sharding.AXES.values()
        for axis in (value if isinstance(value, tuple) else [value])
    }
    assert used - {None} <= set(sharding.MESH_AXES)


def test_a_global_batch_asks_for_local_rows_and_puts_each_in_place():
    mesh = sharding.make_mesh(load("tiny").mesh)
    rows = sharding.batch_sharding(mesh)
    asked = []

    def make(wanted: np.ndarray) -> dict[str, np.ndarray]:
        asked.append(wanted)
        return {"x": np.stack([wanted * 10, wanted * 10 + 1], axis=1)}

    batch = sharding.global_batch(make, rows, 16)
    np.testing.assert_array_equal(asked, [np.arange(16)])
    np.testing.assert_array_equal(batch["x"][:, 1], np.arange(16) * 10 + 1)
    for shard in batch["x"].addressable_shards:
        assert shard.data.shape == (2, 2)


class _Row:
    """A sharding of which this process holds some devices only, in any order."""

    def __init__(self, starts: list[int], size: int):
        self.starts, self.size = starts, size

    def addressable_devices_indices_map(self, shape: tuple[int, ...]) -> dict:
        return {i: (slice(s, s + self.size),) for i, s in enumerate(self.starts)}


def test_local_rows_need_not_be_one_block():
    scattered = _Row([12, 0, 12], 2)  # two devices hold the same rows
    np.testing.assert_array_equal(sharding.local_rows(scattered, 16), [0, 1, 12, 13])
