"""The device mesh that arrays are sharded over."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh

from bert_jax.config.schema import MeshConfig
from bert_jax.errors import UserError

MESH_AXES = ("slice", "data", "fsdp", "tensor")


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Returns the mesh, for training and for ahead-of-time compilation.

    Raises:
        UserError: JAX finds no devices, the product of the axes is not their number, or the mesh
            does not fit the topology.
    """
    devices = find_devices() if devices is None else devices
    sizes = abstract_mesh(config, len(devices)).axis_sizes
    types = (AxisType.Auto,) * len(MESH_AXES)
    slices = len({getattr(device, "slice_index", None) for device in devices})
    if slices > 1 and sizes[0] == 1 and devices[0].platform == "gpu":
        # JAX calls a GPU's host a slice. NCCL finds the links, so an axis may span hosts.
        ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
        return Mesh(np.reshape(np.array(ordered, object), sizes), MESH_AXES, axis_types=types)
    try:
        if slices == 1:
            return jax.make_mesh(sizes, MESH_AXES, axis_types=types, devices=devices)
        grid = mesh_utils.create_hybrid_device_mesh(
            (1, *sizes[1:]), (sizes[0], 1, 1, 1), devices, allow_split_physical_axes=True
        )
    except (NotImplementedError, ValueError) as error:
        raise UserError(
            f"config.mesh ({_shape(config)}) cannot be mapped to these {len(devices)} devices in "
            f"{slices} slices of {devices[0].device_kind}; set config.mesh.slice to the number of "
            "slices and every other axis to a product of side lengths of a slice"
        ) from error
    return Mesh(grid, MESH_AXES, axis_types=types)


def abstract_mesh(config: MeshConfig, devices: int) -> AbstractMesh:
    """Returns the shape of the mesh of a number of devices; UserError if the product of the axes is
    another."""
    sizes = [getattr(config, axis) for axis in MESH_AXES]
    known = math.prod(s for s in sizes if s != -1)
    if sizes.count(-1) == 1 and known > 0 and devices % known == 0:
        sizes[sizes.index(-1)] = devices // known
    if -1 in sizes or min(sizes) < 1 or math.prod(sizes) != devices:
        raise UserError(
            f"config.mesh ({_shape(config)}) does not fit {devices} devices: the product of all "
            "axes must be the number of devices; at most one axis may be -1, which is then inferred"
        )
    return AbstractMesh(tuple(sizes), MESH_AXES)


def _shape(config: MeshConfig) -> str:
    return ", ".join(f"{axis}={getattr(config, axis)}" for axis in MESH_AXES)


def axis_size(mesh: Mesh | AbstractMesh, entry: Any) -> int:
    """Returns the number of shards into which a PartitionSpec entry splits its dimension."""
    names = entry if isinstance(entry, tuple) else (entry,) if entry else ()
    return math.prod(mesh.shape[name] for name in names)


def find_devices() -> list[jax.Device]:
    """Returns JAX's devices; UserError if it finds none for JAX_PLATFORMS."""
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter where a plugin is not installed
        reason = " ".join(str(error).split())[:200] or "its plugin is not installed"
        platforms = jax.config.values["jax_platforms"]
        raise UserError(
            f"JAX finds no devices for JAX_PLATFORMS={platforms} ({reason}); "
            "install the [tpu] or [cuda] extra of bert-jax in this environment, or unset it"
        ) from None
