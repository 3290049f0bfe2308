"""Muon: orthogonalized momentum for the matrices of the layers.

Muon (Jordan et al. 2024, github.com/KellerJordan/Muon) replaces the momentum of a matrix, UΣVᵀ, by
nearly UVᵀ: five Newton-Schulz steps on M/‖M‖ take its singular values into about 0.7 … 1.2. Each
matrix of one layer is orthogonalized separately, also query, key and value, although layers are
stacked and the three are fused in one array.

Momentum is `optax.trace` in Nesterov's form, as in Jordan's code and in Moonshot's (Liu et al.
2025, arXiv 2502.16982). `optax.contrib.scale_by_muon` has a momentum of its own, with a bias
correction that neither has; here it only orthogonalizes, because devices exchange the momentum
before that.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from optax.contrib import MuonDimensionNumbers

from bert_jax.config.schema import OptimizerConfig
from bert_jax.errors import UserError
from bert_jax.parallel.mesh import axis_size
from bert_jax.parallel.partition import STACKED


def for_matrices_of_layers(
    config: OptimizerConfig,
    axes: Any,
    storage: Any | None,
    otherwise: optax.GradientTransformationExtraArgs,
) -> optax.GradientTransformationExtraArgs:
    """Returns Muon for the matrices of the layers, and another optimizer for everything else.

    Args:
        axes, storage: as in `make_optimizer`; no storage means one device.
    """

    def label(names: tuple[str, ...]) -> str:
        return "matrices" if dimension_numbers(names) else "others"

    labels = jax.tree.map(label, axes, is_leaf=_is_names)
    return optax.partition({"matrices": _muon(config, axes, storage), "others": otherwise}, labels)


def dimension_numbers(names: Sequence[str]) -> MuonDimensionNumbers | None:
    """Returns rows and columns of a stack of matrices of layers; None for other parameters.

    The stack is dimension 0. "embed" is one side of the matrix, all other dimensions that separate
    no matrices are the other side, in their order.

    Args:
        names: of all dimensions of the parameter.

    Raises:
        UserError: "embed" is between the others.
    """
    sides = [name for name in names if name not in STACKED]
    if "layers" not in names or "embed" not in names or len(sides) == 1:
        return None
    dims = tuple(range(1, len(sides) + 1))
    if sides[0] == "embed":
        return MuonDimensionNumbers(dims[:1], dims[1:])
    if sides[-1] == "embed":
        return MuonDimensionNumbers(dims[:-1], dims[-1:])
    raise UserError(
        f"config.optimizer.name=muon cannot tell rows from columns of {sides}; "
        'make "embed" the first or the last'
    )


def _is_names(leaf: Any) -> bool:
    return isinstance(leaf, tuple)


def _muon(config: OptimizerConfig, axes: Any, storage: Any | None) -> optax.GradientTransformation:
    """Returns momentum, orthogonalized and multiplied by `muon_scale`.

    In bfloat16, momentum is rounded to nearest between steps: a step changes it by 1 - b of itself,
    more than the spacing of bfloat16 values.
    """
    names_of = dict(jax.tree_util.tree_leaves_with_path(axes, is_leaf=_is_names))
    sharding_of = dict(jax.tree_util.tree_leaves_with_path(storage))

    def leaf(path: tuple, x: jax.Array) -> jax.Array:
        return config.muon_scale * _orthogonalize(x, names_of[path], sharding_of.get(path))

    momentum = np.float32(config.muon_momentum)  # not a Python float, so that products are float32
    return optax.chain(
        optax.trace(momentum, nesterov=True, accumulator_dtype=config.moment_dtype),
        optax.stateless(lambda updates, _: jax.tree_util.tree_map_with_path(leaf, updates)),
    )


def _orthogonalize(
    x: jax.Array, names: tuple[str, ...], storage: NamedSharding | None
) -> jax.Array:
    """Orthogonalizes every matrix of an array; the result is sharded like the array.

    The matrices are shared out: all-to-all collectives give each device as many unsharded ones as
    any other, padding included, and return the results.
    """
    spec = storage.spec if storage else P(*(None for _ in names))
    matrix = [i for i, name in enumerate(names) if name not in STACKED]
    # The order of the matrices is free. A sharded dimension stays sharded if it comes first.
    stacked = sorted(set(range(x.ndim)) - set(matrix), key=lambda i: spec[i] is None)
    order = (*stacked, *matrix)
    stack = x.transpose(order).reshape(-1, *(x.shape[i] for i in matrix))
    count, shardings = len(stack), []
    if storage:
        shardings = _sharing_out(storage.mesh, [spec[i] for i in (order[0], *matrix)])
        devices = axis_size(storage.mesh, shardings[-1].spec[0])
        stack = jnp.pad(stack, [(0, -count % devices)] + [(0, 0)] * len(matrix))
    for sharding in shardings:
        stack = jax.lax.with_sharding_constraint(stack, sharding)
    muon = optax.contrib.scale_by_muon(
        beta=0.0, nesterov=False, weight_dimension_numbers=dimension_numbers(names)
    )
    stack, _ = muon.update(stack, muon.init(stack))
    for sharding in reversed(shardings):
        stack = jax.lax.with_sharding_constraint(stack, sharding)
    return stack[:count].reshape([x.shape[i] for i in order]).transpose(np.argsort(order))


def _sharing_out(mesh: Mesh | AbstractMesh, split: Sequence[Any]) -> list[NamedSharding]:
    """Returns the shardings of a stack on its way from storage to unsharded matrices.

    One mesh axis moves to the stack at a time, which is one all-to-all. Slices do not share: each
    orthogonalizes all matrices, and nothing is sent between them.

    Args:
        split: entries of a PartitionSpec, of the stack and of the dimensions of a matrix.
    """
    over = (split[0],) if split[0] else ()
    specs = [P(over, *split[1:])]
    for axis in ("data", "fsdp", "tensor"):
        if mesh.shape[axis] > 1 and axis not in over:
            over = (*over, axis)
            specs.append(P(over, *(None if entry == axis else entry for entry in specs[-1][1:])))
    return [NamedSharding(mesh, spec) for spec in specs]
