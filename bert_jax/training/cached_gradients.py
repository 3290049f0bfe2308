"""Gradients of a loss that compares the rows of all micro-batches, in the memory of one.

GradCache (Gao et al. 2021, arXiv 2101.06983, section 3): the forward pass of every micro-batch
without what a backward pass needs; the loss of all its outputs and the gradient with respect to
them; then each micro-batch forward again, with the same dropout, and backward from its part of that
gradient. It is the loss of one batch, at the cost of a second forward pass.

Sizes: m micro-batches of b rows on this device or, outside `shard_map`, on all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from bert_jax.parallel.global_batch import Batch
from bert_jax.parallel.partition import AXES, constrain_batch


@dataclass(frozen=True)
class AcrossRows:
    """A loss in two parts.

    Attributes:
        outputs: (params in the compute dtype, batch, key) -> what the loss compares, a pytree of
            arrays whose first dimension is that of rows.
        loss: (outputs, batch, denominators) -> (loss, sums), without parameters.
    """

    outputs: Callable[[Any, Batch, jax.Array], Any]
    loss: Callable[[Any, Batch, Any], tuple[jax.Array, Any]]


def cached_gradients(
    across_rows: AcrossRows,
    params: Any,
    batch: Batch,
    key: jax.Array,
    counts: Any,
    place: Callable[[Any], Any] = lambda zeros: zeros,
    stored: Callable[[Any], Any] = lambda gradients: gradients,
) -> tuple[tuple, Any]:
    """Returns ((loss, sums), float32 gradients) of the whole batch.

    Args:
        batch: arrays [m, b, ...], see `global_batch.micro_batches`.
        key: of the dropout of each micro-batch, uint32 [m].
        place: places zeros like the gradients.
        stored: places the gradients of a micro-batch.
    """

    def outputs_of(batch_and_key: tuple) -> Any:
        return across_rows.outputs(params, *batch_and_key)

    def add(total: Any, part: tuple) -> tuple:
        *batch_and_key, cotangent = part
        _, pullback = jax.vjp(lambda p: across_rows.outputs(p, *batch_and_key), params)
        (gradients,) = pullback(cotangent)
        return jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, stored(gradients)), None

    m = len(key)
    outputs = _joined(jax.lax.map(outputs_of, (batch, key)))
    grad_fn = jax.value_and_grad(across_rows.loss, has_aux=True)
    losses, cotangents = grad_fn(outputs, _joined(batch), counts)
    zeros = place(jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params))
    gradients, _ = jax.lax.scan(add, zeros, (batch, key, _divided(cotangents, m)))
    return losses, gradients


def _joined(parts: Any) -> Any:
    """Returns arrays [m, b, ...] as [m · b, ...], the rows in their order in the batch, so that no
    data moves between devices."""

    def leaf(x: jax.Array) -> jax.Array:
        whole = x.swapaxes(0, 1).reshape(x.shape[0] * x.shape[1], *x.shape[2:])
        return constrain_batch(whole)

    return jax.tree.map(leaf, parts)


def _divided(whole: Any, m: int) -> Any:
    """Returns arrays [m · b, ...] as [m, b, ...]; reverses `_joined`."""

    def leaf(x: jax.Array) -> jax.Array:
        parts = constrain_batch(x).reshape(len(x) // m, m, *x.shape[1:]).swapaxes(0, 1)
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.empty or mesh.manual_axes:
            return parts
        return jax.lax.with_sharding_constraint(parts, P(None, AXES["batch"]))

    return jax.tree.map(leaf, whole)
