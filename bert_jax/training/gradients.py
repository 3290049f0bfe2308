"""Gradients over a global batch: two implementations with one signature.

`data_parallel_gradients`, for meshes with data axes only, is per-device code (`jax.shard_map`): the
gradients are summed over devices once, after the last micro-batch. `partitioned_gradients` leaves
all collectives to XLA's partitioner.

Both cast matrices to the compute dtype before the all-gather, and their gradients before the
reduction, which halves the communication volume in bfloat16; everything else is float32.

The gradients of micro-batches add up, unless a loss compares the rows of all of them: see
`cached_gradients.py`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.ops.hashing import fold_key
from bert_jax.optimizers.optimizer import weight_decay_mask
from bert_jax.parallel import partition
from bert_jax.parallel.collectives import all_gather, is_pure_data_parallel, reduce_scatter
from bert_jax.parallel.global_batch import Batch, micro_batches
from bert_jax.training.cached_gradients import AcrossRows, cached_gradients
from bert_jax.training.state_sharding import ParamSpecs

# (params, frozen params, both in the compute dtype, batch, key, denominators) -> (loss, sums)
LossFn = Callable[[Any, Any, Batch, jax.Array, Any], tuple[jax.Array, Any]]
# (params, frozen params, batch, key, denominators, number of micro-batches) -> ((loss, sums),
# float32 gradients)
GradientsFn = Callable[[Any, Any, Batch, jax.Array, Any, int], tuple[tuple, Any]]


def make_gradients(
    loss_fn: LossFn,
    rows: NamedSharding,
    specs: ParamSpecs,
    frozen: ParamSpecs,
    dtype: str,
    across_rows: AcrossRows | None = None,
) -> GradientsFn:
    """Returns the gradient function for a mesh.

    Args:
        rows: how the rows of a batch are sharded over the mesh.
        frozen: specs of a second tree of parameters, which has no gradients; `NO_PARAMS` if there
            is none.
        dtype: the compute dtype.
        across_rows: `loss_fn` in two parts, if it compares the rows of all micro-batches.
    """
    pure = is_pure_data_parallel(rows.mesh)
    make = data_parallel_gradients if pure else partitioned_gradients
    return make(loss_fn, rows, specs, frozen, dtype, across_rows)


def data_parallel_gradients(
    loss_fn: LossFn,
    rows: NamedSharding,
    specs: ParamSpecs,
    frozen: ParamSpecs,
    dtype: str,
    across_rows: AcrossRows | None = None,
) -> GradientsFn:
    """All-gathers parameters, differentiates on each device, reduce-scatters the gradients."""
    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    storage, per_layer = specs.storage, specs.per_layer

    def gathered(params: Any, specs: ParamSpecs) -> Any:
        cast = cast_matrices(params, dtype)
        return jax.tree.map(all_gather, cast, specs.storage, specs.per_layer)

    def on_device(params: Any, second: Any, batch: Batch, key: jax.Array, counts: Any) -> tuple:
        computed, second = gathered(params, specs), gathered(second, frozen)
        if across_rows and key.ndim:
            losses, gradients = cached_gradients(across_rows, computed, batch, key, counts)
        else:
            losses, gradients = _accumulate(grad_fn, computed, second, batch, key, counts)
        gradients = jax.tree.map(lambda g, p: g.astype(p.dtype), gradients, computed)
        gradients = jax.tree.map(reduce_scatter, gradients, storage, per_layer)
        return jax.tree.map(lambda x: reduce_scatter(x, P()), losses), gradients

    def gradients_of(
        params: Any, second: Any, batch: Batch, key: jax.Array, counts: Any, parts: int
    ) -> tuple:
        batch, key = _split(batch, key, parts, rows)
        split = P(None, *rows.spec) if parts > 1 else rows.spec
        ins, outs = (storage, frozen.storage, split, P(), P()), (P(), storage)
        run = jax.shard_map(
            on_device, mesh=rows.mesh, in_specs=ins, out_specs=outs, check_vma=False
        )
        return _in_float32(*run(params, second, batch, key, counts))

    return gradients_of


def partitioned_gradients(
    loss_fn: LossFn,
    rows: NamedSharding,
    specs: ParamSpecs,
    frozen: ParamSpecs,
    dtype: str,
    across_rows: AcrossRows | None = None,
) -> GradientsFn:
    """Constrains parameters to the compute sharding and gradients to the storage sharding."""
    compute, storage, of_second = (
        partition.on_mesh(rows.mesh, s) for s in (specs.compute, specs.storage, frozen.compute)
    )
    constrain = jax.lax.with_sharding_constraint

    def grad_fn(params: Any, *others: Any) -> tuple:
        losses, gradients = jax.value_and_grad(loss_fn, has_aux=True)(params, *others)
        return losses, stored(gradients)

    def stored(gradients: Any) -> Any:
        # First to the sharding of the parameters, so that the storage sharding does not propagate
        # back into the matrix products.
        return constrain(constrain(gradients, compute), storage)

    def gradients_of(
        params: Any, second: Any, batch: Batch, key: jax.Array, counts: Any, parts: int
    ) -> tuple:
        batch, key = _split(batch, key, parts, rows)
        computed = constrain(cast_matrices(params, dtype), compute)
        second = constrain(cast_matrices(second, dtype), of_second)
        place = functools.partial(constrain, shardings=storage)
        if across_rows and parts > 1:
            found = cached_gradients(across_rows, computed, batch, key, counts, place, stored)
            return _in_float32(*found)
        return _in_float32(*_accumulate(grad_fn, computed, second, batch, key, counts, place))

    return gradients_of


def _accumulate(
    grad_fn: Callable[..., tuple],
    params: Any,
    second: Any,
    batch: Batch,
    key: jax.Array,
    counts: Any,
    place: Callable[[Any], Any] = lambda zeros: zeros,
) -> tuple:
    """Returns losses and gradients of a batch, or their sums over micro-batches (one per key)."""
    if not key.ndim:
        return grad_fn(params, second, batch, key, counts)

    def add(total: Any, batch_and_key: tuple) -> tuple:
        losses, gradients = grad_fn(params, second, *batch_and_key, counts)
        return jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, gradients), losses

    zeros = place(jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params))
    scanned: tuple = jax.lax.scan(add, zeros, (batch, key))
    gradients, losses = scanned
    return jax.tree.map(lambda x: x.sum(0), losses), gradients


def _split(
    batch: Batch, key: jax.Array, parts: int, rows: NamedSharding
) -> tuple[Batch, jax.Array]:
    """Returns micro-batches and a dropout key for each; the inputs unchanged if parts is 1."""
    if parts == 1:
        return batch, key
    return micro_batches(batch, parts, rows), fold_key(key, jnp.arange(parts))


def _in_float32(losses: Any, gradients: Any) -> tuple:
    return losses, jax.tree.map(lambda g: g.astype(jnp.float32), gradients)


def cast_matrices(params: Any, dtype: str) -> Any:
    """Casts matrices to the compute dtype; all other parameters stay float32."""
    mask = weight_decay_mask(params)
    return jax.tree.map(lambda p, matrix: p.astype(dtype) if matrix else p, params, mask)
