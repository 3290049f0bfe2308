"""The global batch: which rows each process loads, and how they form global arrays."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.errors import UserError
from bert_jax.parallel.mesh import axis_size
from bert_jax.parallel.partition import AXES, spec

Batch = Mapping[str, jax.Array]  # arrays by name, see `BatchArrays` of data_pipeline/assemble.py


def batch_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Returns the sharding of a batch: rows over the data axes, other dimensions unsharded."""
    return NamedSharding(mesh, spec("batch"))


def check_divides(mesh: Mesh | AbstractMesh, batch_size: int, micro_batches: int = 1) -> None:
    """Raises UserError if a micro-batch cannot be sharded evenly over the data axes."""
    devices = axis_size(mesh, AXES["batch"])
    parts = devices * micro_batches
    if batch_size % parts:
        factor = f" * micro_batches={micro_batches}" if micro_batches > 1 else ""
        raise UserError(
            f"batch_size={batch_size} is not divisible by {devices} devices{factor}; "
            f"nearest multiple: {max(1, round(batch_size / parts)) * parts}"
        )


def micro_batches(batch: Any, parts: int, rows: NamedSharding) -> Any:
    """Reshapes arrays [B, ...] -> [parts, B / parts, ...] without moving data between devices.

    Micro-batch m has rows m, m + parts, m + 2·parts, ...: an equal share of each device's rows.
    Consecutive rows would be on a few devices only.
    """
    sharding = NamedSharding(rows.mesh, P(None, *rows.spec))

    def leaf(x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)
        return jax.lax.with_sharding_constraint(x, sharding)

    return jax.tree.map(leaf, batch)


def local_rows(sharding: NamedSharding, batch_size: int, process: int | None = None) -> np.ndarray:
    """Returns the rows of the global batch on a process's devices (default: this one), sorted [n].

    On TPU slices the mesh reorders devices, so the rows need not be one contiguous block.
    """
    process = jax.process_index() if process is None else process
    indices: Mapping[Any, Any] = sharding.devices_indices_map((batch_size,))
    own = [index for device, index in indices.items() if device.process_index == process]
    return np.unique(np.concatenate([np.arange(batch_size)[index] for index in own]))


def global_batch(
    make: Callable[[np.ndarray], dict[str, np.ndarray]], sharding: NamedSharding, batch_size: int
) -> dict[str, jax.Array]:
    """Returns a batch of global arrays; `make` is called with the rows that this process holds."""
    rows = local_rows(sharding, batch_size)
    local = make(rows)

    def place(values: np.ndarray) -> jax.Array:
        def shard(index: tuple[slice, ...] | None) -> np.ndarray:
            wanted = np.arange(batch_size)[index[0]] if index else rows
            return values[np.searchsorted(rows, wanted)]

        shape = (batch_size, *values.shape[1:])
        return jax.make_array_from_callback(shape, sharding, shard)

    return {name: place(values) for name, values in local.items()}


def local_values(array: jax.Array) -> np.ndarray:
    """Returns the rows [n, …] of a global array [B, …] that this process holds, as `local_rows`."""
    shards = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
    return np.concatenate([np.asarray(shards[first]) for first in sorted(shards)])


def gather_batches(local: Any, sharding: NamedSharding, batch_size: int) -> Any:
    """Returns the values of all rows of each batch, [batches, B, …], in every process, from those
    of the rows that each process holds, [batches, n, …]; all processes call it.

    local: a pytree of float32 or int32.
    """
    if jax.process_count() == 1:
        return local
    rows = [local_rows(sharding, batch_size, process) for process in range(jax.process_count())]

    def leaf(gathered: np.ndarray) -> np.ndarray:  # [processes, batches, n, …]
        values = np.empty((gathered.shape[1], batch_size, *gathered.shape[3:]), gathered.dtype)
        for own, of_process in zip(rows, gathered, strict=True):
            values[:, own] = of_process
        return values

    return jax.tree.map(leaf, multihost_utils.process_allgather(local))
