"""Sharding rules: the table from logical axes to mesh axes, and PartitionSpecs made from it."""

import functools
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.errors import UserError
from bert_jax.parallel.mesh import axis_size

# Logical axis of a parameter or activation -> mesh axis. A missing name is an error. The width of
# embedding tables is not sharded: otherwise every lookup would be a full rematerialization.
AXES: dict[str, Any] = {
    "batch": ("slice", "data", "fsdp"),
    "layers": None,
    "vocab": "tensor",
    "table": None,
    "position": None,
    "type": None,
    "embed": "fsdp",
    "qkv": None,
    "gate": None,
    "heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
    "pooled": None,
    "boundary": None,
    "classes": None,
    "norm": None,
}
# Dimensions along which separate matrices are stacked in one array.
STACKED = {"layers", "qkv", "gate"}


def spec(*axes: str) -> P:
    """Returns the PartitionSpec of logical axes.

    Raises:
        KeyError: an axis is not in `AXES`.
    """
    return P(*(AXES[axis] for axis in axes))


def constrain_batch(x: jax.Array) -> jax.Array:
    """Constrains the leading dimension of an activation to the data axes of the current mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes:  # nothing to shard, or per-device code
        return x
    return jax.lax.with_sharding_constraint(x, spec("batch"))


def param_axes(abstract: nnx.State) -> dict:
    """Returns the logical axes of each parameter, a dict like the parameters' of tuples of names.

    "layers" comes first if layers are stacked; "qkv" and "gate" are dimensions over fused
    matrices.
    """

    def leaf(variable: nnx.Variable) -> tuple[str, ...]:
        axes = variable.get_metadata("axes")
        return ("layers",) * (variable.get_value().ndim - len(axes)) + axes

    axes = {path: leaf(v) for path, v in nnx.to_flat_state(abstract)}
    return jax.tree_util.tree_map_with_path(
        lambda path, _: axes[tuple(k.key for k in path)], nnx.to_pure_dict(abstract)
    )


def is_names(leaf: Any) -> bool:
    """Returns whether it is a leaf of a tree of logical axes."""
    return isinstance(leaf, tuple)


def compute_specs(axes: Any) -> Any:
    """Returns the tree of PartitionSpecs for a tree of logical axes."""
    return jax.tree.map(lambda names: spec(*names), axes, is_leaf=is_names)


def check_fits(mesh: Mesh | AbstractMesh, axes: Any, shapes: Any) -> None:
    """Raises UserError if a mesh axis does not divide a parameter dimension that it shards.

    Args:
        axes, shapes: trees of the same structure, of logical axes and of arrays (or
            ShapeDtypeStructs).
    """

    def leaf(path: tuple, names: tuple[str, ...], x: Any) -> None:
        for name, entry, size in zip(names, spec(*names), x.shape, strict=True):
            if size % axis_size(mesh, entry):
                raise UserError(
                    f"config.mesh.{entry}={mesh.shape[entry]} does not divide "
                    f'"{name}"={size} of {".".join(k.key for k in path)} '
                    f"{list(x.shape)}; {_REMEDY.get(name, _OTHERWISE).format(axis=entry)}"
                )

    jax.tree_util.tree_map_with_path(leaf, axes, shapes, is_leaf=is_names)


_OTHERWISE = "set config.mesh.{axis} to a divisor of it"
_REMEDY = {"vocab": "make config.model.pad_vocab_to_multiple_of a multiple of config.mesh.{axis}"}


def over_data(mesh: Mesh | AbstractMesh, split: P, shape: tuple[int, ...]) -> P:
    """Returns the spec of a parameter whose update is also sharded over "data".

    "data" is assigned to the first unsharded dimension that it divides, so that contiguous memory
    is sent. If no such dimension exists, the spec is unchanged.
    """
    free = [
        i
        for i, (entry, size) in enumerate(zip(split, shape, strict=True))
        if axis_size(mesh, entry) == 1 and size % mesh.shape["data"] == 0
    ]
    if not free or mesh.shape["data"] == 1:
        return split
    return P(*("data" if i == free[0] else entry for i, entry in enumerate(split)))


def abstract_on(shapes: Any, shardings: Any) -> Any:
    """Returns a tree of shapes as ShapeDtypeStructs with shardings."""
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings
    )


def place(array: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    """Returns an array that every process has on the devices of a sharding."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def on_mesh(mesh: Mesh | AbstractMesh, specs: Any) -> Any:
    """Returns the NamedShardings of PartitionSpecs on a mesh."""
    return jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, P))


def replicate_like(like: Any) -> Any:
    """Returns a jitted function that gives every device of the mesh the whole of an array that is
    sharded like this one."""
    return _replicate_on(like.sharding.mesh)


@functools.cache
def _replicate_on(mesh: Mesh) -> Any:
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))
