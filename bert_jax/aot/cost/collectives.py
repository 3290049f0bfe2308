"""The collectives of a compiled program: bytes, mesh axes, and a lower bound of their time.

Seconds are a lower bound: the bytes that each device sends in a ring algorithm, over all links of
the chip to its neighbours at once (ICI), or over its share of the data center network (DCN) between
slices. Latency is not included.

    all-reduce                    2 (n - 1) / n of the array
    all-gather, reduce-scatter      (n - 1) / n of the full array
    all-to-all                      (n - 1) / n of the array
    collective-permute              the array

(Rabenseifner 2004, "Optimization of Collective Reduction Operations"; Chan et al. 2007, "Collective
communication: theory, practice, and experience", section 6.)
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from bert_jax.aot.hlo import replica_groups
from bert_jax.aot.hlo.loops import ASYNCHRONOUS, Executions, Place
from bert_jax.aot.hlo.parser import Computation, Instruction, Module
from bert_jax.launch.hardware.accelerators import Accelerator

KINDS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast",
)  # fmt: skip
Network = Literal["ici", "dcn"]

SLICE = "slice"  # the mesh axis between slices
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective in one place.

    start, done: names of the instructions that start it and wait for it; done is None for a
        synchronous collective. computation: the computation that contains both.
    times: number of executions per step.
    bytes: of the full array on a device (before a scatter, after a gather), per execution.
    sent: bytes that a device sends per execution.
    devices: number of devices in a group.
    axes: mesh axes. partly: a group holds only some of the devices along them.
    seconds: per execution, None if the accelerator's bandwidth is unknown.
    """

    kind: str
    start: str
    done: str | None
    computation: str
    times: int
    bytes: int
    sent: float
    devices: int
    axes: tuple[str, ...]
    partly: bool
    network: Network
    seconds: float | None


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Collectives of one kind over the same axes: totals of a step, per device.

    overlapped: whether they overlap with computation. Other fields as in `Collective`.
    """

    kind: str
    axes: tuple[str, ...]
    devices: int
    partly: bool
    network: Network
    overlapped: bool
    runs: int
    bytes: int
    sent: float
    seconds: float | None


def traffic(every: Sequence[Collective]) -> tuple[Traffic, ...]:
    """Returns totals by kind and axes, most bytes sent first."""
    kind = tuple[str, tuple[str, ...], int, bool, Network, bool]
    alike: dict[kind, list[Collective]] = collections.defaultdict(list)
    for one in every:
        key = (one.kind, one.axes, one.devices, one.partly, one.network, one.done is not None)
        alike[key].append(one)
    found = [
        Traffic(
            *key,
            runs=sum(one.times for one in ones),
            bytes=sum(one.times * one.bytes for one in ones),
            sent=sum(one.times * one.sent for one in ones),
            seconds=total_seconds(ones),
        )
        for key, ones in alike.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.sent))


def total_seconds(every: Sequence[Collective]) -> float | None:
    """Returns seconds per step, one after the other; None if a bandwidth is unknown."""
    if any(one.seconds is None for one in every):
        return None
    return sum(one.times * (one.seconds or 0.0) for one in every)


def find(
    module: Module, runs: Executions, mesh: Mapping[str, int], accelerator: Accelerator
) -> tuple[Collective, ...]:
    """Returns all collectives; a start and its done count as one, as do the fusions of a chain.

    Args:
        mesh: axis sizes, in the mesh's order.
    """
    return tuple(
        _collective(place, raw, mesh, accelerator)
        for place in runs.places
        if place.caller is None or place.caller.opcode not in ASYNCHRONOUS
        for raw in _of_place(module, place)
    )


@dataclasses.dataclass(frozen=True)
class _Raw:
    """inner, around: the collective and its computation, which may be a fusion's."""

    kind: str
    start: Instruction
    done: Instruction | None
    inner: Instruction
    around: Computation


def _of_place(module: Module, place: Place) -> Iterator[_Raw]:
    here = place.computation
    chains: dict[str, list[_Raw]] = {}
    for one in here.instructions:
        base = one.opcode.removesuffix("-start")
        if base in KINDS:
            done = _done(here, one) if base != one.opcode else None
            yield _Raw(base, one, done, one, here)
        elif one.opcode in ASYNCHRONOUS:
            ((called,),) = one.called.values()
            around = module.computations[called]
            for inner in around.instructions:
                if inner.opcode in KINDS:
                    yield _Raw(inner.opcode, one, _done(here, one), inner, around)
        elif one.opcode == "send" and (transfer := _TRANSFER.search(one.rest)):
            kind = transfer[1].lower().replace("_", "-")
            yield _Raw(kind, one, _received(here, one), one, here)
        elif one.opcode == "fusion":
            for inner, around in _inside(module, one):
                key = inner.attribute("channel_id") or inner.name
                raw = _Raw(_kind(inner, around), one, None, inner, around)
                chains.setdefault(key, []).append(raw)
    for chain in chains.values():
        yield from _of_chain(chain)


def _of_chain(chain: list[_Raw]) -> list[_Raw]:
    """Returns the collectives of fusions on the same channel.

    If one fusion starts the collective, the others advance it while they compute, and one ends it.
    """

    def calling(target: str) -> list[_Raw]:
        return [raw for raw in chain if target in {one.target for one in raw.around.instructions}]

    started, ended = calling("AsyncCollectiveStart"), calling("AsyncCollectiveDone")
    if not started:
        return chain
    return [dataclasses.replace(started[0], done=ended[0].start if ended else None)]


def _kind(inner: Instruction, around: Computation) -> str:
    """Returns the kind; an all-reduce followed by a slice per device is a reduce-scatter."""
    slices = [one for one in around.instructions if one.opcode == "dynamic-slice"]
    scattered = any(_leads_to(around, one, inner.name) for one in slices)
    return "reduce-scatter" if inner.opcode == "all-reduce" and scattered else inner.opcode


def _leads_to(computation: Computation, instruction: Instruction, name: str) -> bool:
    """Whether its chain of first operands leads to the named instruction."""
    value: Instruction | None = instruction
    while value is not None and value.name != name:
        value = next(iter(computation.operands(value)), None)
    return value is not None


def _inside(module: Module, fusion: Instruction) -> Iterator[tuple[Instruction, Computation]]:
    around = module.fused(fusion)
    for one in around.instructions if around else ():
        if one.opcode in KINDS:
            yield one, around  # type: ignore[misc]
        elif one.opcode == "fusion":
            yield from _inside(module, one)


def _done(computation: Computation, start: Instruction) -> Instruction | None:
    """Returns the instruction that waits for an asynchronous start."""
    names = {start.name}
    for one in computation.instructions:
        if names.intersection(one.operands):
            if one.opcode.endswith("-done"):
                return one
            if one.opcode.endswith("-update"):
                names.add(one.name)
    return None


def _received(computation: Computation, send: Instruction) -> Instruction | None:
    """Returns the instruction that waits for the reply to a send between slices."""
    meeting = _RENDEZVOUS.search(send.rest)
    for one in computation.instructions:
        if one.opcode == "recv" and meeting and meeting[0] in one.rest:
            return _done(computation, one)
    return None


def _collective(
    place: Place, raw: _Raw, mesh: Mapping[str, int], accelerator: Accelerator
) -> Collective:
    inner = raw.inner
    between = inner.opcode == "send"
    groups = replica_groups.parse(inner.groups, math.prod(mesh.values()) // mesh.get(SLICE, 1))
    axes = (SLICE,) if between else replica_groups.axes(groups, mesh)
    n = mesh[SLICE] if between else len(groups[0])
    given = raw.around.operands(inner)
    size = given[0].bytes if between else sum(one.bytes for one in given)
    size *= n if raw.kind == "all-gather" else 1
    network: Network = "dcn" if SLICE in axes else "ici"
    sent = _sent(raw.kind, size, n)
    return Collective(
        kind=raw.kind,
        start=raw.start.name,
        done=raw.done.name if raw.done else None,
        computation=place.computation.name,
        times=place.times,
        bytes=size,
        sent=sent,
        devices=n,
        axes=axes,
        partly=raw.kind != "collective-permute"
        and not between
        and not replica_groups.spans(groups, axes, mesh),
        network=network,
        seconds=_seconds(sent, network, accelerator),
    )


def _sent(kind: str, size: int, n: int) -> float:
    if kind == "all-reduce":
        return 2 * (n - 1) / n * size
    if kind in ("all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"):
        return (n - 1) / n * size
    return float(size)


def _seconds(sent: float, network: Network, accelerator: Accelerator) -> float | None:
    # The given bandwidth counts both directions of a link.
    links = accelerator.ici_bandwidth and accelerator.ici_bandwidth / 2
    bandwidth = links if network == "ici" else accelerator.dcn_bandwidth
    return sent / bandwidth if bandwidth else None
