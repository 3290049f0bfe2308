"""Applies the layers of an encoder, whose parameters are stacked, in compiled loops.

Layers of one kind that follow one another are one `lax.scan`. If kinds alternate, as local and
global attention do, one iteration is a period of them. What is left over at the ends, such as a
first layer without LayerNorm, is applied outside a loop.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.model.attention import Kind

_POLICIES = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots_saveable": jax.checkpoint_policies.dots_saveable,
    "dots_with_no_batch_dims_saveable": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def _rematerialized(body: Callable, remat: str, *, looped: bool) -> Callable:
    """Returns the body of the layer loop, rematerialized by a checkpoint policy.

    The forward and backward passes of a scan are two loops, and XLA does no common-subexpression
    elimination between them. In unrolled code it would merge the recomputed values with the first
    ones and keep those in memory, so barriers are needed there (`prevent_cse`); inside a loop they
    only add cost. On CPUs unrolled code saves no memory even so: XLA schedules the recomputation
    too early.
    """
    if remat == "none":
        return body
    return jax.checkpoint(body, policy=_POLICIES[remat], prevent_cse=not looped)


class _Segment(NamedTuple):
    """Layers from `start`: a period of kinds, several times over."""

    start: int
    period: int
    times: int


def apply_layers(
    layers: Any,
    kinds: Sequence[Kind],
    body: Callable[[jax.Array, Any, Kind, jax.Array | None], tuple[jax.Array, Any]],
    x: jax.Array,
    keys_L: jax.Array | None = None,
    *,
    unroll: int = 1,
    remat: str = "none",
) -> tuple[jax.Array, Any]:
    """Returns the result of the last layer, and what the body returned of each, stacked [L, …].

    Args:
        layers: the stacked parameters of L layers, or of groups of layers that share theirs.
        kinds: of each layer.
        body: (x, layer, its kind, its key) -> (x, what it returns besides).
        keys_L: a key for each layer, or None.
        unroll: layers in one iteration.
        remat: `config.compute.remat`.
    """
    groups = len(jax.tree.leaves(layers)[0])
    each, results = len(kinds) // groups, []
    for group in range(groups) if each > 1 else [None]:
        first, count = (0, len(kinds)) if group is None else (group * each, each)
        shared = None if group is None else jax.tree.map(lambda a, g=group: a[g], layers)
        for segment in _segments(kinds[first : first + count]):
            segment = segment._replace(start=first + segment.start)
            xs = (layers if shared is None else None, keys_L)
            part = _part(xs, segment, len(kinds))
            x, result = _loop(segment, kinds, body, x, part, shared, unroll, remat)
            results.append(result)
    if len(results) == 1:
        return x, results[0]
    return x, jax.tree.map(lambda *parts: jnp.concatenate(parts), *results)


def _segments(kinds: Sequence[Kind]) -> list[_Segment]:
    """Returns the first layer alone, if its norms differ; the most periods of equal kinds; and the
    layers that are left."""
    forms = [(kind.window, kind.normed) for kind in kinds]
    lead = int(kinds[0].normed != kinds[-1].normed)
    rest = forms[lead:]
    period = next(p for p in range(1, len(rest) + 1) if rest == (rest[:p] * len(rest))[: len(rest)])
    times, left = divmod(len(rest), period)
    segments = (
        _Segment(0, 1, lead),
        _Segment(lead, period, times),
        _Segment(len(kinds) - left, left, 1),
    )
    return [segment for segment in segments if segment.period * segment.times]


def _part(xs: Any, segment: _Segment, count: int) -> Any:
    """Returns the elements of a segment's layers: [times, …], or [times, period, …]."""
    start, period, times = segment

    def leaf(a: jax.Array) -> jax.Array:
        if period * times < count:
            a = a[start : start + period * times]
        return a if period == 1 else a.reshape(times, period, *a.shape[1:])

    return jax.tree.map(leaf, xs)


def _loop(
    segment: _Segment,
    kinds: Sequence[Kind],
    body: Callable,
    x: jax.Array,
    xs: Any,
    shared: Any,
    unroll: int,
    remat: str,
) -> tuple[jax.Array, Any]:
    """Applies the layers of a segment; shared: the parameters of all of them, if they share."""
    start, period, times = segment
    unroll = max(1, min(unroll // period, times))
    looped = times % unroll == 0 and times > unroll

    def one(x: jax.Array, item: Any, kind: Kind) -> tuple[jax.Array, Any]:
        layer, key = item
        return body(x, layer if shared is None else shared, kind, key)

    steps = [
        _rematerialized(functools.partial(one, kind=kind), remat, looped=looped)
        for kind in kinds[start : start + period]
    ]

    def iteration(x: jax.Array, item: Any) -> tuple[jax.Array, Any]:
        if period == 1:
            return steps[0](x, item)
        results = []
        for j, step in enumerate(steps):
            x, result = step(x, jax.tree.map(lambda a, j=j: a[j], item))
            results.append(result)
        return x, jax.tree.map(lambda *parts: jnp.stack(parts), *results)

    x, results = jax.lax.scan(iteration, x, xs, length=times, unroll=unroll)
    return x, results if period == 1 else jax.tree.map(_merged, results)


def _merged(a: jax.Array) -> jax.Array:
    """[times, period, …] -> [layers, …]"""
    return a.reshape(-1, *a.shape[2:])
