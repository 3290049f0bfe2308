"""The global batch: which rows each process has, and how they become one array."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.errors import UserError
from bert_jax.parallel.mesh import axis_size
from bert_jax.parallel.partition import AXES, spec

Batch = Mapping[str, jax.Array]  # as data_pipeline/batch.py makes it


def batch_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Rows split over the data axes, everything else whole."""
    return NamedSharding(mesh, spec("batch"))


def check_divides(mesh: Mesh, batch_size: int, micro_batches: int = 1) -> None:
    """Raises UserError where a micro-batch cannot be split evenly over the data axes."""
    devices = axis_size(mesh, AXES["batch"])
    parts = devices * micro_batches
    if batch_size % parts:
        times = f" in micro_batches={micro_batches}" if micro_batches > 1 else ""
        raise UserError(
            f"batch_size={batch_size} does not divide over {devices} devices{times}; "
            f"nearest that does: {max(1, round(batch_size / parts)) * parts}"
        )


def micro_batches(batch: Any, parts: int, rows: NamedSharding) -> Any:
    """Arrays [B, ...] -> [parts, B / parts, ...], nothing moving between devices.

    Micro-batch m has rows m, m + parts, m + 2·parts, ...: of the rows of every device an equal
    share. Consecutive rows would lie on a few devices only.
    """
    of_part = NamedSharding(rows.mesh, P(None, *rows.spec))

    def leaf(x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)
        return jax.lax.with_sharding_constraint(x, of_part)

    return jax.tree.map(leaf, batch)


def local_rows(sharding: NamedSharding, batch_size: int, process: int | None = None) -> np.ndarray:
    """The rows of the global batch that a process's devices (default: this one's) hold, sorted [n].

    On real slices the mesh reorders devices, so these need not be one contiguous block.
    """
    process = jax.process_index() if process is None else process
    indices: Mapping[Any, Any] = sharding.devices_indices_map((batch_size,))
    own = [index for device, index in indices.items() if device.process_index == process]
    return np.unique(np.concatenate([np.arange(batch_size)[index] for index in own]))


def global_batch(
    make: Callable[[np.ndarray], dict[str, np.ndarray]], sharding: NamedSharding, batch_size: int
) -> dict[str, jax.Array]:
    """A batch of global arrays; `make` is asked for exactly the rows this process holds."""
    rows = local_rows(sharding, batch_size)
    local = make(rows)

    def place(values: np.ndarray) -> jax.Array:
        def shard(index: tuple[slice, ...] | None) -> np.ndarray:
            wanted = np.arange(batch_size)[index[0]] if index else rows
            return values[np.searchsorted(rows, wanted)]

        shape = (batch_size, *values.shape[1:])
        return jax.make_array_from_callback(shape, sharding, shard)

    return {name: place(values) for name, values in local.items()}
