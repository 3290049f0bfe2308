"""Config changes that should make a step fit into memory: estimates, nothing is compiled here.

Bytes of the state are exact. Temporaries are copies of the gradients and activations. libtpu 0.0.42
holds up to 2 copies of the gradients, 3 to 5 if they are accumulated over micro-batches, and fewer
if the step is written for one device (`collectives.is_pure_data_parallel`); the estimate uses the
larger numbers. Gradients are unsharded even under `shard_optimizer`, because each device gathers
the parameters for a step. Activations shrink with the rows per device, and under full
rematerialization as in Korthikanti et al. 2022 (arXiv 2205.05198, equation 2 and section 5): a
layer saves 34 + 5·heads·length/width bytes per element of its input, or 2 if rematerialized.
"""

import dataclasses
import functools
import math
import shlex
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
    """changes: config overrides by key. needed: estimated bytes per device with them."""

    changes: Change
    needed: int

    @property
    def flags(self) -> str:
        """The command-line flags that apply the changes."""
        return flags(self.changes)


def flags(changes: Change) -> str:
    """Returns command-line flags, quoted for shells in which [0] is a pattern."""
    return shlex.join(f"--config.{key}={value}" for key, value in changes.items())


def remedies(config: Config, index: int, mesh: Mesh, memory: Memory) -> list[Remedy]:
    """Returns single changes that should make a phase's step fit, the mildest of each kind.

    If no single change is enough, returns one combination of the fewest kinds that is; if none is,
    all kinds combined.

    Args:
        index: phase index. memory: memory of its step with the unchanged config.
    """
    limit = memory.limit or 0
    needed = functools.partial(bytes_with, config, index, mesh, memory)
    kinds = list(_kinds(config, index, mesh))
    single = [_first(kind, needed, limit) for kind in kinds]
    if enough := [remedy for remedy in single if remedy]:
        return enough
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
    """Returns the mildest change of a kind that is enough, None if none is."""
    for change in kind:
        total = needed(change)
        if total is not None and total <= limit:
            return Remedy(change, total)
    return None


def _kinds(config: Config, index: int, mesh: Mesh) -> Iterator[list[Change]]:
    """Yields the changes of each kind, from mild to strong."""
    phase, parts = config.phases[index], config.phases[index].micro_batches
    rows, free = phase.batch_size // _data_parts(mesh.shape), mesh.shape["data"]
    yield [
        {f"phases[{index}].micro_batches": n}
        for n in range(2 * parts, rows + 1, parts)
        if rows % n == 0
    ]
    yield [{"compute.remat": "full"}] if config.compute.remat != "full" else []
    replicated = free > 1 and not config.compute.shard_optimizer
    yield [{"compute.shard_optimizer": True}] if replicated else []
    for_data = config.mesh.data  # -1 takes the remaining devices automatically
    yield [
        {"mesh.fsdp": n * mesh.shape["fsdp"]} | ({} if for_data == -1 else {"mesh.data": free // n})
        for n in (2**k for k in range(1, free.bit_length()))
        if free % n == 0
    ]


def bytes_with(
    config: Config, index: int, mesh: Mesh, memory: Memory, change: Change
) -> int | None:
    """Returns estimated bytes per device with a change; None if no such mesh is possible."""
    changed = with_changes(config, change)
    try:
        new_mesh = make_mesh(changed.mesh, list(mesh.devices.flat))
        built = lower.build(changed, new_mesh)
    except UserError:
        return None
    resident = ResidentBytes.of(changed, changed.phases[index], built)
    gradients = _gradient_copies(changed, index) * _gathered_bytes(changed, index, new_mesh)
    gradients_now = _gradient_copies(config, index) * _gathered_bytes(config, index, mesh)
    activations = max(0, memory.temporaries - gradients_now)
    share = rows_per_device(changed, index, new_mesh.shape)
    share /= rows_per_device(config, index, mesh.shape)
    share *= _saved_bytes(changed, index) / _saved_bytes(config, index)
    return resident.total + gradients + memory.other + round(activations * share)


@functools.lru_cache(maxsize=16)  # called with the same mesh for every change
def _gathered_bytes(config: Config, index: int, mesh: Mesh) -> int:
    """Returns bytes per device of the gathered parameters during a step, in float32."""
    gathered = with_changes(config, {"compute.shard_optimizer": False})
    built = lower.build(gathered, mesh)
    return ResidentBytes.of(gathered, gathered.phases[index], built).parameters


def _gradient_copies(config: Config, index: int) -> int:
    """Returns the number of gradient copies that libtpu holds at most."""
    return 2 if config.phases[index].micro_batches == 1 else 5


def rows_per_device(config: Config, index: int, mesh: Mapping[str, int]) -> float:
    """Returns the rows of a micro-batch of a phase per device; mesh: axis -> size."""
    phase = config.phases[index]
    return phase.batch_size / phase.micro_batches / _data_parts(mesh)


def _saved_bytes(config: Config, index: int) -> float:
    """Returns bytes saved for the backward pass, per element of a layer's input, of all layers."""
    model = config.model
    full = 34 + 5 * model.num_attention_heads * config.phases[index].row_tokens / model.hidden_size
    if config.compute.remat != "full":
        return model.num_hidden_layers * full
    return 2 * model.num_hidden_layers + full  # inputs of all layers, and all activations of one


def _data_parts(mesh: Mapping[str, int]) -> int:
    return math.prod(mesh[axis] for axis in partition.AXES["batch"])


def with_changes(config: Config, change: Change) -> Config:
    """Returns the config with values overridden by key, as on the command line."""
    plain = to_dict(config)
    for key, value in change.items():
        *path, last = key.replace("[", ".").replace("]", "").split(".")
        inner: Any = plain
        for name in path:
            inner = inner[int(name)] if name.isdecimal() else inner[name]
        inner[last] = value
    return from_dict(plain, Config)
