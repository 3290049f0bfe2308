"""The collectives of a compiled program: bytes, mesh axes, and a lower bound of their time.

Seconds are a lower bound: the bytes that each device sends in a ring algorithm, over all links of
the chip to its neighbours at once (ICI), or over its share of the data center network (DCN) between
slices. Latency is not included.

    all-reduce                    2 (n - 1) / n of the array
    all-gather, reduce-scatter      (n - 1) / n of the full array
    all-to-all                      (n - 1) / n of the array
    collective-permute              the array

Between hosts with GPUs n is the number of hosts, and the GPUs of a host each send a part: each may
use its own network adapter.

(Rabenseifner 2004, "Optimization of Collective Reduction Operations"; Chan et al. 2007, "Collective
communication: theory, practice, and experience", section 6.)
"""

# Over 300 lines: one walk finds a collective in every form in which a compiler writes it.

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Literal

from bert_jax.aot.hlo import replica_groups
from bert_jax.aot.hlo.loops import ASYNCHRONOUS, Executions, Place
from bert_jax.aot.hlo.parser import Computation, Instruction, Module
from bert_jax.hardware.accelerators import Accelerator

KINDS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast",
)  # fmt: skip
Network = Literal["ici", "dcn"]

SLICE = "slice"  # the mesh axis between slices
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_START, _DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"  # of custom calls in fusions
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

    asynchronous: whether they start before they are awaited. Other fields as in `Collective`.
    """

    kind: str
    axes: tuple[str, ...]
    devices: int
    partly: bool
    network: Network
    asynchronous: bool
    runs: int
    bytes: int
    sent: float
    seconds: float | None


def traffic(collectives: Sequence[Collective]) -> tuple[Traffic, ...]:
    """Returns totals by kind and axes, most bytes sent first."""
    kind = tuple[str, tuple[str, ...], int, bool, Network, bool]
    alike: dict[kind, list[Collective]] = collections.defaultdict(list)
    for c in collectives:
        key = (c.kind, c.axes, c.devices, c.partly, c.network, c.done is not None)
        alike[key].append(c)
    totals = [
        Traffic(
            *key,
            runs=sum(c.times for c in group),
            bytes=sum(c.times * c.bytes for c in group),
            sent=sum(c.times * c.sent for c in group),
            seconds=total_seconds(group),
        )
        for key, group in alike.items()
    ]
    return tuple(sorted(totals, key=lambda total: -total.sent))


def total_seconds(collectives: Sequence[Collective]) -> float | None:
    """Returns seconds per step, one after the other; None if a bandwidth is unknown."""
    if any(c.seconds is None for c in collectives):
        return None
    return sum(c.times * (c.seconds or 0.0) for c in collectives)


def find(
    module: Module,
    runs: Executions,
    mesh: Mapping[str, int],
    accelerator: Accelerator,
    linked: int | None = None,
) -> tuple[Collective, ...]:
    """Returns all collectives; a start and its done count as one, as do the fusions of a chain, of
    which some may be in a loop between the two.

    Args:
        mesh: axis sizes, in the mesh's order.
        linked: number of neighbouring devices that ICI or NVLink joins; None: those of a slice.
    """
    started = {
        _channel(instruction)
        for computation in module.computations.values()
        if _calls(computation, _START)
        for instruction in computation.instructions
        if instruction.opcode in KINDS
    }
    return tuple(
        _collective(place, raw, mesh, accelerator, linked)
        for place in runs.places
        if place.caller is None or place.caller.opcode not in ASYNCHRONOUS
        for raw in _of_place(module, place, started)
    )


@dataclasses.dataclass(frozen=True)
class _Raw:
    """inner, computation: the collective and its computation, which may be a fusion's."""

    kind: str
    start: Instruction
    done: Instruction | None
    inner: Instruction
    computation: Computation


def _of_place(module: Module, place: Place, started: Set[str]) -> Iterator[_Raw]:
    """started: channels on which some fusion starts a collective."""
    computation = place.computation
    chains: dict[str, list[_Raw]] = {}
    for op in computation.instructions:
        base = op.opcode.removesuffix("-start")
        if base in KINDS:
            done = _done(computation, op) if base != op.opcode else None
            yield _Raw(base, op, done, op, computation)
        elif op.opcode in ASYNCHRONOUS:
            ((name,),) = op.called.values()
            called = module.computations[name]
            for inner in called.instructions:
                if inner.opcode in KINDS:
                    yield _Raw(inner.opcode, op, _done(computation, op), inner, called)
        elif op.opcode == "send" and (transfer := _TRANSFER.search(op.rest)):
            kind = transfer[1].lower().replace("_", "-")
            yield _Raw(kind, op, _received(computation, op), op, computation)
        elif op.opcode == "fusion":
            for inner, fused in _in_fusion(module, op):
                raw = _Raw(_kind(inner, fused), op, None, inner, fused)
                chains.setdefault(_channel(inner), []).append(raw)
    for channel, chain in chains.items():
        yield from _of_chain(chain, channel in started)


def _of_chain(chain: list[_Raw], is_started: bool) -> list[_Raw]:
    """Returns the collectives of fusions of a computation on the same channel.

    If one fusion starts the collective, here or in a caller, the others advance it while they
    compute, and one ends it.
    """
    first = [raw for raw in chain if _calls(raw.computation, _START)]
    last = [raw for raw in chain if _calls(raw.computation, _DONE)]
    if not first:
        return [] if is_started else chain
    return [dataclasses.replace(first[0], done=last[0].start if last else None)]


def _channel(collective: Instruction) -> str:
    return collective.attribute("channel_id") or collective.name


def _calls(computation: Computation, target: str) -> bool:
    return any(instruction.target == target for instruction in computation.instructions)


def _kind(inner: Instruction, computation: Computation) -> str:
    """Returns the kind; an all-reduce followed by a slice per device is a reduce-scatter."""
    slices = [i for i in computation.instructions if i.opcode == "dynamic-slice"]
    scattered = any(_leads_to(computation, piece, inner.name) for piece in slices)
    return "reduce-scatter" if inner.opcode == "all-reduce" and scattered else inner.opcode


def _leads_to(computation: Computation, instruction: Instruction, name: str) -> bool:
    """Returns whether its chain of first operands leads to the named instruction."""
    value: Instruction | None = instruction
    while value is not None and value.name != name:
        value = next(iter(computation.operands(value)), None)
    return value is not None


def _in_fusion(module: Module, fusion: Instruction) -> Iterator[tuple[Instruction, Computation]]:
    computation = module.fused(fusion)
    for instruction in computation.instructions if computation else ():
        if instruction.opcode in KINDS:
            yield instruction, computation  # type: ignore[misc]
        elif instruction.opcode == "fusion":
            yield from _in_fusion(module, instruction)


def _done(computation: Computation, start: Instruction) -> Instruction | None:
    """Returns the instruction that waits for an asynchronous start."""
    names = {start.name}
    for instruction in computation.instructions:
        if names.intersection(instruction.operands):
            if instruction.opcode.endswith("-done"):
                return instruction
            if instruction.opcode.endswith("-update"):
                names.add(instruction.name)
    return None


def _received(computation: Computation, send: Instruction) -> Instruction | None:
    """Returns the instruction that waits for the reply to a send between slices."""
    rendezvous = _RENDEZVOUS.search(send.rest)
    for instruction in computation.instructions:
        if instruction.opcode == "recv" and rendezvous and rendezvous[0] in instruction.rest:
            return _done(computation, instruction)
    return None


def _collective(
    place: Place,
    raw: _Raw,
    mesh: Mapping[str, int],
    accelerator: Accelerator,
    linked: int | None,
) -> Collective:
    inner = raw.inner
    between = inner.opcode == "send"
    numbered = math.prod(mesh.values()) // (1 if linked else mesh.get(SLICE, 1))
    groups = replica_groups.parse(inner.groups, numbered)
    axes = (SLICE,) if between else replica_groups.axes(groups, mesh)
    n = mesh[SLICE] if between else len(groups[0])
    operands = raw.computation.operands(inner)
    size = operands[0].bytes if between else sum(operand.bytes for operand in operands)
    size *= n if raw.kind == "all-gather" else 1
    islands = len({device // linked for device in groups[0]}) if linked else 1
    network: Network = "dcn" if islands > 1 or (SLICE in axes and not linked) else "ici"
    sent = _sent(raw.kind, size, n)
    if islands > 1:  # a hierarchical algorithm adds up within a host first, and all GPUs send
        sent = _sent(raw.kind, size, islands) / (
            n // islands if raw.kind in _ADDED_OR_SHARED else 1
        )
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


_ADDED_OR_SHARED = ("all-reduce", "all-gather", "reduce-scatter")


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
