"""The mesh of devices that arrays are partitioned over."""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh

from bert_jax.config.schema import MeshConfig
from bert_jax.errors import UserError

MESH_AXES = ("slice", "data", "fsdp", "tensor")


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh for training and for compilation ahead of time alike.

    Raises:
        UserError: the axes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [getattr(config, axis) for axis in MESH_AXES]
    shape = ", ".join(f"{axis}={size}" for axis, size in zip(MESH_AXES, sizes, strict=True))
    known = math.prod(s for s in sizes if s != -1)
    if sizes.count(-1) == 1 and known > 0 and len(devices) % known == 0:
        sizes[sizes.index(-1)] = len(devices) // known
    if -1 in sizes or min(sizes) < 1 or math.prod(sizes) != len(devices):
        raise UserError(
            f"config.mesh ({shape}) does not fit {len(devices)} devices: the product of all axes "
            "is their number; one axis, no more, may be -1 and takes what is left"
        )
    types = (AxisType.Auto,) * len(MESH_AXES)
    slices = len({getattr(device, "slice_index", None) for device in devices})
    try:
        if slices == 1:
            return jax.make_mesh(tuple(sizes), MESH_AXES, axis_types=types, devices=devices)
        laid = mesh_utils.create_hybrid_device_mesh(
            (1, *sizes[1:]), (sizes[0], 1, 1, 1), devices, allow_split_physical_axes=True
        )
    except (NotImplementedError, ValueError) as error:
        raise UserError(
            f"config.mesh ({shape}) cannot be laid on these {len(devices)} devices in {slices} "
            f"slices of {devices[0].device_kind}; let config.mesh.slice be the number of slices "
            "and each other axis a product of sides of a slice"
        ) from error
    return Mesh(laid, MESH_AXES, axis_types=types)


def axis_size(mesh: Mesh | AbstractMesh, entry: Any) -> int:
    """How many parts one entry of a PartitionSpec cuts its dimension into."""
    names = entry if isinstance(entry, tuple) else (entry,) if entry else ()
    return math.prod(mesh.shape[name] for name in names)
