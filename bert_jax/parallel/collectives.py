"""Collectives over the data axes, for per-device code (`jax.shard_map`).

No operation of per-device code has the size of the global batch, and a gradient is reduce-scattered
in one collective. XLA's partitioner would all-reduce most gradients and then slice them.
"""

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from bert_jax.parallel.mesh import MESH_AXES
from bert_jax.parallel.partition import AXES


def is_pure_data_parallel(mesh: Mesh | AbstractMesh) -> bool:
    """Returns whether no axis of more than one device shards parameters during a step."""
    return all(axis in ("slice", "data") or mesh.shape[axis] == 1 for axis in MESH_AXES)


def _manual_axes() -> tuple[str, ...]:
    """Returns the axes of more than one device that the enclosing `shard_map` maps over."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(a for a in MESH_AXES if a in mesh.manual_axes and mesh.shape[a] > 1)


def global_row_offset(rows: int) -> jax.Array | int:
    """Returns the index in the global batch of this device's first row; 0 outside `shard_map`.

    Args:
        rows: number of rows on each device.
    """
    axes = tuple(axis for axis in AXES["batch"] if axis in _manual_axes())
    return jax.lax.axis_index(axes) * rows if axes else 0


def gather_rows(x: jax.Array) -> jax.Array:
    """Returns the rows [n · devices, …] of all devices in the order of the global batch, from the
    rows [n, …] of this device; outside `shard_map`, where all rows are there, on every device.

    In per-device code the gradient is reduce-scattered: a device has the sum of what all devices
    made of its rows.
    """
    axes = tuple(axis for axis in AXES["batch"] if axis in _manual_axes())
    if axes:
        return jax.lax.all_gather(x, axes, axis=0, tiled=True)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes:
        return x
    return jax.lax.with_sharding_constraint(x, P())


def all_gather(x: jax.Array, spec: P, per_layer: bool = False) -> jax.Array:
    """Returns the unsharded array from this device's shard.

    Args:
        spec: the PartitionSpec of the array.
        per_layer: one collective for each index of the first dimension, which is not sharded. If
            the layers are used separately, no stack has to be assembled or sliced.
    """
    if "data" not in spec:
        return x
    if per_layer:
        return jnp.stack([all_gather(part, P(*spec[1:])) for part in x])
    return jax.lax.all_gather(x, "data", axis=spec.index("data"), tiled=True)


def reduce_scatter(x: jax.Array, spec: P, per_layer: bool = False) -> jax.Array:
    """Returns this device's shard of the sum over devices.

    Args:
        spec: the PartitionSpec of the sum.
        per_layer: as in `all_gather`.
    """
    axes = _manual_axes()
    if per_layer and axes:
        return jnp.stack([reduce_scatter(part, P(*spec[1:])) for part in x])
    if "data" in spec:
        dim = spec.index("data")
        # Along the first dimension, because along others TPUs all-reduce and slice.
        x = jax.lax.psum_scatter(jnp.moveaxis(x, dim, 0), "data", tiled=True)
        x, axes = jnp.moveaxis(x, 0, dim), tuple(a for a in axes if a != "data")
    return jax.lax.psum(x, axes) if axes else x
