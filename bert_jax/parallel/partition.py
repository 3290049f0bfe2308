"""Where arrays live: the one table of mesh axes, the mesh, and global batches from local rows."""

from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.errors import UserError
from bert_jax.parallel.mesh import axis_size

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


def spec(*axes: str) -> P:
    """Logical axes -> PartitionSpec.

    Raises:
        KeyError: an axis that is not in the table.
    """
    return P(*(AXES[axis] for axis in axes))


def constrain_batch(x: jax.Array) -> jax.Array:
    """Keeps the leading dimension of an activation split over the data axes of the mesh in use."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes:  # nothing to split, or written for one device
        return x
    return jax.lax.with_sharding_constraint(x, spec("batch"))


def param_axes(abstract: nnx.State) -> dict:
    """The logical axes of each parameter as a tuple of names, in a dict like the parameters'.

    "layers" comes first where layers are stacked; "qkv" counts the matrices fused into one.
    """

    def leaf(variable: nnx.Variable) -> tuple[str, ...]:
        axes = variable.get_metadata("axes")
        return ("layers",) * (variable.get_value().ndim - len(axes)) + axes

    axes = {path: leaf(v) for path, v in nnx.to_flat_state(abstract)}
    return jax.tree_util.tree_map_with_path(
        lambda path, _: axes[tuple(k.key for k in path)], nnx.to_pure_dict(abstract)
    )


def param_specs(axes: Any) -> Any:
    """A tree of logical axes -> the same tree of PartitionSpecs."""
    return jax.tree.map(lambda names: spec(*names), axes, is_leaf=lambda x: isinstance(x, tuple))


def check_fits(mesh: Mesh | AbstractMesh, axes: Any, shapes: Any) -> None:
    """Raises UserError where a mesh axis does not divide the dimension of a parameter it splits.

    Args:
        axes, shapes: trees alike, of logical axes and of arrays (or ShapeDtypeStructs).
    """

    def leaf(path: tuple, names: tuple[str, ...], x: Any) -> None:
        for name, entry, size in zip(names, spec(*names), x.shape, strict=True):
            if size % axis_size(mesh, entry):
                raise UserError(
                    f"config.mesh.{entry}={mesh.shape[entry]} does not divide "
                    f'"{name}"={size} of {".".join(k.key for k in path)} '
                    f"{list(x.shape)}; {_REMEDY.get(name, _OTHERWISE).format(axis=entry)}"
                )

    jax.tree_util.tree_map_with_path(leaf, axes, shapes, is_leaf=lambda x: isinstance(x, tuple))


_OTHERWISE = "set config.mesh.{axis} to a divisor of it"
_REMEDY = {"vocab": "make config.model.pad_vocab_to_multiple_of a multiple of config.mesh.{axis}"}


def over_data(mesh: Mesh | AbstractMesh, split: P, shape: tuple[int, ...]) -> P:
    """The spec of a parameter whose updates are shared out over "data", from its spec otherwise.

    "data" goes to the first dimension that no axis splits and that it divides: whole rows of memory
    are sent as they lie. An array without one stays as it is.
    """
    free = [
        i
        for i, (entry, size) in enumerate(zip(split, shape, strict=True))
        if axis_size(mesh, entry) == 1 and size % mesh.shape["data"] == 0
    ]
    if not free or mesh.shape["data"] == 1:
        return split
    return P(*("data" if i == free[0] else entry for i, entry in enumerate(split)))


def on_mesh(mesh: Mesh | AbstractMesh, specs: Any) -> Any:
    """PartitionSpecs -> shardings on a mesh."""
    return jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, P))
