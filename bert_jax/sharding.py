"""Where arrays live: the one table of mesh axes, the mesh, and global batches from local rows."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.config import MeshConfig
from bert_jax.errors import UserError

MESH_AXES = ("slice", "data", "fsdp", "tensor")

# Logical axis of a parameter or activation -> mesh axis. A name that is not here is an error.
# The embedding tables keep their width whole: split, every lookup would be a rematerialization.
AXES: dict[str, Any] = {
    "batch": ("slice", "data", "fsdp"),
    "layers": None,
    "vocab": "tensor",
    "table": None,
    "position": None,
    "type": None,
    "embed": "fsdp",
    "qkv": None,
    "heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
    "pooled": None,
    "boundary": None,
    "classes": None,
    "norm": None,
}


def use_cpu_devices(count: int) -> None:
    """Lets a CPU act as so many devices; only before the first array is made."""
    jax.config.update("jax_num_cpu_devices", count)


def spec(*axes: str) -> P:
    """Logical axes -> PartitionSpec.

    Raises:
        KeyError: an axis that is not in the table.
    """
    return P(*(AXES[axis] for axis in axes))


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh for training and for compilation ahead of time alike.

    Raises:
        UserError: the axes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [getattr(config, axis) for axis in MESH_AXES]
    known = int(np.prod([s for s in sizes if s != -1]))
    if sizes.count(-1) == 1 and len(devices) % known == 0:
        sizes[sizes.index(-1)] = len(devices) // known
    if -1 in sizes or min(sizes) < 1 or int(np.prod(sizes)) != len(devices):
        shape = ", ".join(f"{a}={getattr(config, a)}" for a in MESH_AXES)
        raise UserError(
            f"config.mesh ({shape}) does not fit {len(devices)} devices; "
            "set one axis to -1 to let it take what is left"
        )
    return jax.make_mesh(
        tuple(sizes), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES), devices=devices
    )


def constrain_batch(x: jax.Array) -> jax.Array:
    """Keeps the leading dimension of an activation split over the data axes of the mesh in use."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, spec("batch"))


def param_specs(abstract: nnx.State) -> dict:
    """The logical axes of each parameter as a PartitionSpec, in a dict like the parameters'."""

    def leaf(variable: nnx.Variable) -> P:
        axes = variable.get_metadata("axes")
        stacked = variable.get_value().ndim - len(axes)
        return spec(*("layers",) * stacked, *axes)

    specs = {path: leaf(v) for path, v in nnx.to_flat_state(abstract)}
    return jax.tree_util.tree_map_with_path(
        lambda path, _: specs[tuple(k.key for k in path)], nnx.to_pure_dict(abstract)
    )


def on_mesh(mesh: Mesh, specs: Any) -> Any:
    """PartitionSpecs -> shardings on a mesh."""
    return jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, P))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows split over the data axes, everything else whole."""
    return NamedSharding(mesh, spec("batch"))


def check_divides(mesh: Mesh, batch_size: int) -> None:
    """Raises UserError where a batch cannot be split evenly over the data axes."""
    parts = int(np.prod([mesh.shape[axis] for axis in AXES["batch"]]))
    if batch_size % parts:
        raise UserError(
            f"batch_size={batch_size} does not divide over {parts} devices; "
            f"nearest that does: {max(1, round(batch_size / parts)) * parts}"
        )


def local_rows(sharding: NamedSharding, batch_size: int) -> np.ndarray:
    """The rows of the global batch that this process's devices hold, sorted [n].

    On real slices the mesh reorders devices, so these need not be one contiguous block.
    """
    indices = sharding.addressable_devices_indices_map((batch_size,)).values()
    return np.unique(np.concatenate([np.arange(batch_size)[index] for index in indices]))


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
