"""What would make a step fit that does not: estimates, for nothing is compiled here.

What the state takes is exact. Temporaries are copies of the gradients and activations. Of gradients
libtpu 0.0.42 keeps up to 2 copies, 3 to 5 where they are added up over parts, and fewer where the
step is written for one device (`per_device.can`): the larger are taken. They are whole also where
`shard_optimizer` splits the parameters, which a device gathers for a step. Activations shrink with
the rows in work at once, and under full rematerialization as in Korthikanti et al. 2022 (arXiv
2205.05198, equation 2 and section 5): for each number that goes into it a layer keeps
34 + 5·heads·length/width bytes, or two.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jax.sharding import Mesh

from bert_jax.aot import lower
from bert_jax.aot.cost.memory import Memory, ResidentBytes
from bert_jax.config.schema import Config
from bert_jax.config.serialization import from_dict, to_dict
from bert_jax.errors import UserError
from bert_jax.parallel import partition
from bert_jax.parallel.mesh import make_mesh

Change = Mapping[str, object]  # key of a config -> its new value


@dataclasses.dataclass(frozen=True)
class Remedy:
    """changes: of the config, by key. needed: bytes of a device with them; an estimate."""

    changes: Change
    needed: int

    @property
    def flags(self) -> str:
        """What to add to the command line."""
        return " ".join(f"--config.{key}={value}" for key, value in self.changes.items())


def remedies(config: Config, index: int, mesh: Mesh, memory: Memory) -> list[Remedy]:
    """Single changes with which a phase's step should fit, the mildest of each kind; where there is
    none, the fewest together; if those are not enough either, all of them.

    Args:
        index: of the phase. memory: what its step takes as it is.
    """
    limit = memory.limit or 0
    needed = functools.partial(bytes_with, config, index, mesh, memory)
    kinds = list(_kinds(config, index, mesh))
    single = [_first(kind, needed, limit) for kind in kinds]
    if found := [remedy for remedy in single if remedy]:
        return found
    together: dict[str, object] = {}
    remedy = None
    for strongest in (kind[-1] for kind in kinds if kind):
        together |= strongest
        total = needed(together)
        remedy = Remedy(dict(together), total) if total else remedy
        if total and total <= limit:
            break
    return [remedy] if remedy else []


def _first(kind: list[Change], needed: Callable[[Change], int | None], limit: int) -> Remedy | None:
    """The mildest of its kind that is enough."""
    for change in kind:
        total = needed(change)
        if total is not None and total <= limit:
            return Remedy(change, total)
    return None


def _kinds(config: Config, index: int, mesh: Mesh) -> Iterator[list[Change]]:
    """Changes by kind, in each from mild to strong."""
    phase, parts = config.phases[index], config.phases[index].micro_batches
    rows, free = phase.batch_size // _data_parts(mesh), mesh.shape["data"]
    yield [
        {f"phases[{index}].micro_batches": n}
        for n in range(2 * parts, rows + 1, parts)
        if rows % n == 0
    ]
    yield [{"compute.remat": "full"}] if config.compute.remat != "full" else []
    whole = free > 1 and not config.compute.shard_optimizer
    yield [{"compute.shard_optimizer": True}] if whole else []
    for_data = config.mesh.data  # -1 takes what is left by itself
    yield [
        {"mesh.fsdp": n * mesh.shape["fsdp"]} | ({} if for_data == -1 else {"mesh.data": free // n})
        for n in (2**k for k in range(1, free.bit_length()))
        if free % n == 0
    ]


def bytes_with(
    config: Config, index: int, mesh: Mesh, memory: Memory, change: Change
) -> int | None:
    """Bytes of a device with a change; None where the mesh cannot be laid so."""
    changed = with_changes(config, change)
    try:
        laid = make_mesh(changed.mesh, list(mesh.devices.flat))
        other = lower.build(changed, laid)
    except UserError:
        return None
    held = ResidentBytes.of(other, lower.batch_of(changed, changed.phases[index], other))
    gradients = _gradient_copies(changed, index) * _whole(changed, index, laid)
    gradients_now = _gradient_copies(config, index) * _whole(config, index, mesh)
    activations = max(0, memory.temporaries - gradients_now)
    share = _rows_in_work(changed, index, laid) / _rows_in_work(config, index, mesh)
    share *= _kept(changed, index) / _kept(config, index)
    return (
        held.parameters
        + gradients
        + held.optimizer
        + held.batch
        + memory.other
        + round(activations * share)
    )


@functools.lru_cache(maxsize=16)  # asked for the same mesh with every change
def _whole(config: Config, index: int, mesh: Mesh) -> int:
    """Bytes of a device's parameters while a step runs, in float32."""
    whole = with_changes(config, {"compute.shard_optimizer": False})
    built = lower.build(whole, mesh)
    return ResidentBytes.of(built, lower.batch_of(whole, whole.phases[index], built)).parameters


def _gradient_copies(config: Config, index: int) -> int:
    return 2 if config.phases[index].micro_batches == 1 else 5


def _rows_in_work(config: Config, index: int, mesh: Mesh) -> float:
    """Rows that a device sees at once."""
    phase = config.phases[index]
    return phase.batch_size / phase.micro_batches / _data_parts(mesh)


def _kept(config: Config, index: int) -> float:
    """Activations kept for the backward pass, in bytes for each number that goes into a layer."""
    model = config.model
    whole = 34 + 5 * model.num_attention_heads * config.phases[index].row_tokens / model.hidden_size
    if config.compute.remat != "full":
        return model.num_hidden_layers * whole
    return 2 * model.num_hidden_layers + whole  # inputs of all layers, and one of them whole


def _data_parts(mesh: Mesh) -> int:
    return math.prod(mesh.shape[axis] for axis in partition.AXES["batch"])


def with_changes(config: Config, change: Change) -> Config:
    """A config with other values, given by key as on the command line."""
    plain = to_dict(config)
    for key, value in change.items():
        *path, last = key.replace("[", ".").replace("]", "").split(".")
        inner: Any = plain
        for name in path:
            inner = inner[int(name)] if name.isdecimal() else inner[name]
        inner[last] = value
    return from_dict(plain, Config)
