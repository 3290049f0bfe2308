"""Inference on all devices of this process: weights are replicated, a batch's rows are sharded."""

import functools
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.config.schema import MeshConfig
from bert_jax.parallel.global_batch import batch_sharding
from bert_jax.parallel.mesh import make_mesh


@functools.cache
def local_mesh() -> Mesh:
    """Returns the mesh of this process's devices, all on its axis "data"."""
    return make_mesh(MeshConfig(), jax.local_devices())


def replicate(tree: Any) -> Any:
    """Returns the arrays with a copy on every device."""
    return jax.device_put(tree, NamedSharding(local_mesh(), P()))


def shard_rows(batch: Any) -> Any:
    """Returns the arrays [B, ...] with an equal share of the rows on each device."""
    return jax.device_put(batch, batch_sharding(local_mesh()))


def rounded_up(rows: int, devices: int) -> int:
    """Returns a number of rows of which each device has as many."""
    return -(-rows // devices) * devices


def padded(rows: int, most: int, devices: int) -> int:
    """Returns the number of rows of a batch that holds `rows` of them, the rest empty.

    Each device has a power of two of them, so few shapes are compiled, or its share of `most`,
    which is a multiple of `devices`.
    """
    return min(devices * power_of_two(-(-rows // devices)), most)


def power_of_two(n: int) -> int:
    """Returns the smallest power of two that is not below n; 1 for n = 0."""
    return 1 << max(n - 1, 0).bit_length()
