"""Muon: orthogonalized momentum for the matrices of the layers.

Muon (Jordan et al. 2024, github.com/KellerJordan/Muon) replaces the momentum of a matrix, UΣVᵀ, by
nearly UVᵀ: five Newton-Schulz steps on M/‖M‖ take its singular values into about 0.7 … 1.2. Each
matrix of one layer is orthogonalized separately, also query, key and value, although layers are
stacked and the three are fused in one array.

Momentum is `optax.trace` in Nesterov's form, as in Jordan's code and in Moonshot's (Liu et al.
2025, arXiv 2502.16982). `optax.contrib.scale_by_muon` has a momentum of its own, with a bias
correction that neither has, and orthogonalizes on every device what devices share here.
`newton_schulz.py` has its steps in the order that TPUs take least time for.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.config.optimizer_settings import OptimizerConfig
from bert_jax.errors import UserError
from bert_jax.optimizers import newton_schulz
from bert_jax.optimizers.adam import ADAMW
from bert_jax.parallel.mesh import axis_size
from bert_jax.parallel.partition import STACKED, is_names


def for_matrices_of_layers(
    config: OptimizerConfig, axes: Any, storage: Any | None
) -> optax.GradientTransformation:
    """Returns Muon for the matrices of the layers, and AdamW for everything else.

    Without such matrices, as for the head of a frozen encoder, it is AdamW. In bfloat16, momentum
    is rounded to nearest between steps: a step changes it by 1 - b of itself, more than the spacing
    of bfloat16 values.

    Args:
        axes, storage: as in `make_optimizer`; no storage means one device.
    """
    adam = ADAMW.make(config, axes, storage)
    sharding_of = dict(jax.tree_util.tree_leaves_with_path(storage))
    layouts = jax.tree_util.tree_map_with_path(
        lambda path, names: _layout(names, sharding_of.get(path)), axes, is_leaf=is_names
    )
    layout_of = dict(jax.tree_util.tree_leaves_with_path(layouts))
    if not layout_of:
        return adam

    def orthogonalize(momentum: Any, _: Any) -> Any:
        arrays, structure = jax.tree_util.tree_flatten_with_path(momentum)
        updates = _orthogonalize([(layout_of[path], x) for path, x in arrays])
        return jax.tree.unflatten(structure, [config.muon_scale * x for x in updates])

    trace = optax.trace(config.muon_momentum, nesterov=True)
    labels = jax.tree_util.tree_map_with_path(
        lambda path, _: "matrices" if path in layout_of else "others", axes, is_leaf=is_names
    )
    muon = optax.chain(trace, optax.stateless(orthogonalize))
    return optax.partition({"matrices": muon, "others": adam}, labels)


MUON = dataclasses.replace(
    ADAMW,
    make=for_matrices_of_layers,
    moments=(*ADAMW.moments, "trace"),
    # Matrices move while others multiply.
    compiler_options={"tpu": {"xla_tpu_enable_async_all_to_all": "true"}},
)


def sides(names: Sequence[str]) -> tuple[list[int], list[int]] | None:
    """Returns the dimensions of rows and of columns; None if these are no matrices of layers.

    "embed" is one side, all other dimensions that separate no matrices are the other side.

    Raises:
        UserError: "embed" is between the others.
    """
    dims = [i for i, name in enumerate(names) if name not in STACKED]
    if "layers" not in names or "embed" not in names or len(dims) == 1:
        return None
    if names[dims[0]] == "embed":
        return dims[:1], dims[1:]
    if names[dims[-1]] == "embed":
        return dims[:-1], dims[-1:]
    raise UserError(
        f"config.optimizer.name=muon cannot tell rows from columns of {[names[i] for i in dims]}; "
        'make "embed" the first or the last'
    )


@dataclasses.dataclass(frozen=True)
class _Layout:
    """A reshaping of an array to a stack of matrices: dimensions reordered, and some merged.

    groups: dimensions to merge into one: of the stack, of rows, of columns.
    rows: number of groups after the first that are rows; the others are columns.
    sharding: of the result; None on one device.
    """

    groups: tuple[tuple[int, ...], ...]
    rows: int
    sharding: NamedSharding | None

    @property
    def order(self) -> list[int]:
        return [i for group in self.groups for i in group]

    def stack(self, x: jax.Array) -> jax.Array:
        shape = [math.prod(x.shape[i] for i in group) for group in self.groups]
        return x.transpose(self.order).reshape(shape)

    def unstack(self, stack: jax.Array, shape: Sequence[int]) -> jax.Array:
        return stack.reshape([shape[i] for i in self.order]).transpose(np.argsort(self.order))


def _layout(names: Sequence[str], storage: NamedSharding | None) -> _Layout | None:
    """Returns a layout that moves no shards; None for other parameters.

    The order of matrices, of rows and of columns is free. Merged dimensions keep the shards of the
    first of them, so a sharded one comes first, and two sharded ones are not merged.
    """
    if not (both := sides(names)):
        return None
    split: Sequence[Any] = (None,) * len(names)
    if storage:
        split = [e if axis_size(storage.mesh, e) > 1 else None for e in storage.spec]

    def merged(dims: Iterable[int]) -> list[tuple[int, ...]]:
        order = sorted(dims, key=lambda i: split[i] is None)
        sharded = [i for i in order if split[i]]
        return [tuple(order)] if len(sharded) < 2 else [(i,) for i in order]

    rows, columns = (merged(dims) for dims in both)
    groups = (*merged(set(range(len(names))).difference(*both)), *rows, *columns)
    spec = P(*(split[first] for first, *_ in groups))
    return _Layout(groups, len(rows), NamedSharding(storage.mesh, spec) if storage else None)


def _orthogonalize(arrays: Sequence[tuple[_Layout, jax.Array]]) -> list[jax.Array]:
    """Orthogonalizes every matrix of all arrays; the results are sharded like the arrays.

    Matrices of one shape, from whatever array, are one stack that the devices share out.
    """
    stacks = [layout.stack(x) for layout, x in arrays]
    alike: dict[Any, list[int]] = collections.defaultdict(list)
    for i, ((layout, _), stack) in enumerate(zip(arrays, stacks, strict=True)):
        alike[stack.shape[1:], layout.rows, layout.sharding].append(i)
    for (_, rows, sharding), members in alike.items():
        ends = np.cumsum([len(stacks[i]) for i in members])
        together = jnp.concatenate([stacks[i] for i in members])
        parts = jnp.split(_orthogonalize_stack(together, rows, sharding), ends[:-1])
        for i, part in zip(members, parts, strict=True):
            stacks[i] = part
    return [
        layout.unstack(stack, x.shape) for (layout, x), stack in zip(arrays, stacks, strict=True)
    ]


def _orthogonalize_stack(stack: jax.Array, rows: int, storage: NamedSharding | None) -> jax.Array:
    """Orthogonalizes the matrices of a stack, the same number on each device, padding included.

    All-to-all collectives move whole matrices to their devices, and the results back.
    """
    count, shardings = len(stack), _sharing_out(storage) if storage else []
    if shardings:
        devices = axis_size(shardings[-1].mesh, shardings[-1].spec[0])
        stack = jnp.pad(stack, [(0, -count % devices)] + [(0, 0)] * (stack.ndim - 1))
    for sharding in shardings:
        stack = jax.lax.with_sharding_constraint(stack, sharding)
    size = math.prod(stack.shape[1 : 1 + rows])
    matrices = newton_schulz.orthogonalize(stack.reshape(len(stack), size, -1))
    stack = matrices.reshape(stack.shape)
    for sharding in reversed(shardings):
        stack = jax.lax.with_sharding_constraint(stack, sharding)
    return stack[:count]


def _sharing_out(storage: NamedSharding) -> list[NamedSharding]:
    """Returns the shardings of a stack on its way from storage to unsharded matrices.

    One mesh axis moves to the stack at a time, which is one all-to-all. Slices do not share: each
    orthogonalizes all matrices, and nothing is sent between them.
    """
    mesh, (first, *others) = storage.mesh, storage.spec
    over = (first,) if first else ()
    specs = [P(over, *others)]
    for axis in ("data", "fsdp", "tensor"):
        if mesh.shape[axis] > 1 and axis not in over:
            over = (*over, axis)
            others = [None if entry == axis else entry for entry in others]
            specs.append(P(over, *others))
    return [NamedSharding(mesh, spec) for spec in specs]
