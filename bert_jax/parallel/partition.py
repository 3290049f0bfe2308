"""Where arrays live: the one table of mesh axes, the mesh, and global batches from local rows."""

import contextlib
import ctypes
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.config.schema import MeshConfig
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


_CPU_IN_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
_CPU_THREADS = 16


def use_cpu_devices(count: int | None, *, processes: int = 1) -> None:
    """Lets the CPU act as so many devices in each process; only before the first array is made.

    The same devices in total give the same bits however many processes and cores they have:

    - PJRT_NPROC, the size of XLA's thread pool: sums and products are cut into as many parts as
      there are threads, which otherwise are the cores or the devices of the process, whichever are
      more. Measured: bits of 4 devices differ after five steps between pools of 4 and 8 threads,
      even without parallel tasks and threads in Eigen; with a fixed size in nothing.
    - Thunks in order: devices that share cores may begin two collectives in different orders, and
      then wait for one another for ever (seen with a split optimizer).

    What the user has set in the environment wins; all processes must have set the same.

    Args:
        count: devices of each process. None: one if there is no accelerator, and since there may be
            one, no fewer threads than without this.
        processes: of the job.
    """
    total = (count or 1) * processes
    threads = max(_CPU_THREADS, total, 0 if count else os.cpu_count() or 1)
    os.environ.setdefault("PJRT_NPROC", str(threads))
    if total > 1:
        flags = (_CPU_IN_ORDER, os.environ.get("XLA_FLAGS", ""))  # of two the last counts
        os.environ["XLA_FLAGS"] = " ".join(filter(None, flags))
    if count:
        jax.config.update("jax_num_cpu_devices", count)


def keep_memory() -> None:
    """Lets this process keep the memory that it frees, where the C library is glibc.

    XLA for CPUs takes the temporaries of a program anew at every execution. By default glibc maps
    that much memory from the kernel and gives it back, and the kernel zeroes each page at its first
    use: a fifth of the processor's time in a step of a small model.
    """
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no such function here
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, -1)


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


def _parts(mesh: Mesh | AbstractMesh, entry: Any) -> int:
    """How many parts one entry of a PartitionSpec cuts its dimension into."""
    names = entry if isinstance(entry, tuple) else (entry,) if entry else ()
    return math.prod(mesh.shape[name] for name in names)


def check_fits(mesh: Mesh | AbstractMesh, axes: Any, shapes: Any) -> None:
    """Raises UserError where a mesh axis does not divide the dimension of a parameter it splits.

    Args:
        axes, shapes: trees alike, of logical axes and of arrays (or ShapeDtypeStructs).
    """

    def leaf(path: tuple, names: tuple[str, ...], x: Any) -> None:
        for name, entry, size in zip(names, spec(*names), x.shape, strict=True):
            if size % _parts(mesh, entry):
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
        if _parts(mesh, entry) == 1 and size % mesh.shape["data"] == 0
    ]
    if not free or mesh.shape["data"] == 1:
        return split
    return P(*("data" if i == free[0] else entry for i, entry in enumerate(split)))


def on_mesh(mesh: Mesh | AbstractMesh, specs: Any) -> Any:
    """PartitionSpecs -> shardings on a mesh."""
    return jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, P))


def batch_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Rows split over the data axes, everything else whole."""
    return NamedSharding(mesh, spec("batch"))


def check_divides(mesh: Mesh, batch_size: int, micro_batches: int = 1) -> None:
    """Raises UserError where a micro-batch cannot be split evenly over the data axes."""
    devices = _parts(mesh, AXES["batch"])
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
