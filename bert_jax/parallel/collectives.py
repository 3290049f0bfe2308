"""What a training step needs that is written for one device of the data axes (`jax.shard_map`).

So no operation of it has the size of the global batch, and a gradient is summed over the devices
and split among them in one collective. Left to the partitioner, most are summed whole and then cut.
"""

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from bert_jax.parallel.mesh import MESH_AXES
from bert_jax.parallel.partition import AXES


def can(mesh: Mesh | AbstractMesh) -> bool:
    """Whether the step is: no axis of more than one device splits parameters while it runs."""
    return all(n in ("slice", "data") or mesh.shape[n] == 1 for n in MESH_AXES)


def _devices_along() -> tuple[str, ...]:
    """The axes of more than one device along which the code in hand is written for one of them."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(n for n in MESH_AXES if n in mesh.manual_axes and mesh.shape[n] > 1)


def rows_before(rows: int) -> jax.Array | int:
    """How many rows of the global batch lie on the devices before this one, each with so many.

    0 outside of code that is written for one device: there an array has all rows.
    """
    axes = tuple(n for n in AXES["batch"] if n in _devices_along())
    return jax.lax.axis_index(axes) * rows if axes else 0


def gather(x: jax.Array, split: P, apart: bool = False) -> jax.Array:
    """A device's part of an array that lies split over "data" like this -> the whole array.

    Args:
        apart: one collective for each index of the first dimension, which is not split. Where each
            is used by itself, nothing big has to be put together or taken apart.
    """
    if "data" not in split:
        return x
    if apart:
        return jnp.stack([gather(part, P(*split[1:])) for part in x])
    return jax.lax.all_gather(x, "data", axis=split.index("data"), tiled=True)


def total(x: jax.Array, split: P, apart: bool = False) -> jax.Array:
    """What each device has computed -> this one's part of the sum, split over "data" like this."""
    axes = _devices_along()
    if apart and axes:
        return jnp.stack([total(part, P(*split[1:])) for part in x])
    if "data" in split:
        i = split.index("data")
        # Along the first dimension: along others TPUs sum all and take a part.
        x = jax.lax.psum_scatter(jnp.moveaxis(x, i, 0), "data", tiled=True)
        x, axes = jnp.moveaxis(x, 0, i), tuple(n for n in axes if n != "data")
    return jax.lax.psum(x, axes) if axes else x
