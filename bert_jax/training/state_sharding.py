"""Sharding of the training state over the mesh, during a step and between steps."""

import dataclasses
from typing import Any, Final

import jax
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from bert_jax.config.schema import ComputeConfig, Config, ModelConfig
from bert_jax.optimizers.optimizer import weight_decay_mask
from bert_jax.parallel import partition

# step: int32 scalar, steps done; params, opt: dicts of arrays; nonfinite: `skip_nonfinite.Counts`;
# ema: the average of params, only with `config.optimizer.ema_decay`
State = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ParamSpecs:
    """Sharding of the parameters; all fields are trees like the parameters'."""

    compute: Any  # PartitionSpecs in the forward and backward pass
    storage: Any  # PartitionSpecs between steps, also of gradients and moments (ZeRO-1)
    per_layer: Any  # bools: gathered and reduced one layer at a time


NO_PARAMS: Final = ParamSpecs({}, {}, {})


def param_specs(
    config: Config,
    mesh: Mesh | AbstractMesh,
    axes: Any,
    params: Any,
    model: ModelConfig | None = None,
) -> ParamSpecs:
    """Returns the specs of the parameters.

    Args:
        axes: logical names of the dimensions of each parameter.
        params: the parameters as ShapeDtypeStructs.
        model: theirs, such as a teacher; by default the config's.
    """
    storage = _storage_specs(config, mesh, axes, params)
    layers = (model or config.model).num_hidden_layers
    per_layer = _per_layer(config.compute, layers, axes, params, storage)
    return ParamSpecs(partition.compute_specs(axes), storage, per_layer)


def state_specs(specs: ParamSpecs, abstract: State) -> dict:
    """Returns the PartitionSpec of every array of the state, in a dict like the state's.

    Subtrees of the optimizer state that mirror the parameters (moments) are sharded like them; the
    rest (counts) is replicated.
    """
    of_path = dict(jax.tree_util.tree_leaves_with_path(specs.storage))

    def leaf(path: tuple, _: Any) -> P:
        tails = (path[start:] for start in range(len(path)))
        return next((of_path[tail] for tail in tails if tail in of_path), P())

    average = {"ema": specs.storage} if "ema" in abstract else {}
    return {
        "step": P(),
        "params": specs.storage,
        **average,
        "opt": jax.tree_util.tree_map_with_path(leaf, abstract["opt"]),
        "nonfinite": jax.tree.map(lambda _: P(), abstract["nonfinite"]),
    }


def _storage_specs(config: Config, mesh: Mesh | AbstractMesh, axes: Any, params: Any) -> Any:
    specs = partition.compute_specs(axes)
    if not config.compute.shard_optimizer:
        return specs

    def leaf(x: jax.ShapeDtypeStruct, names: tuple[str, ...], split: P) -> P:
        # Shard within each layer if possible, not over the stack: a layer may be sent on its own.
        stacked = int(names[0] == "layers")
        over = partition.over_data(mesh, P(*split[stacked:]), x.shape[stacked:])
        layer_split = P(*split[:stacked], *over)
        return layer_split if "data" in over else partition.over_data(mesh, split, x.shape)

    return jax.tree.map(leaf, params, axes, specs)


def _per_layer(compute: ComputeConfig, layers: int, axes: Any, params: Any, storage: Any) -> Any:
    """Returns True for stacked matrices if the loop over the layers is fully unrolled.

    Then a layer's gradient is reduced while the gradients of the layers below are computed.
    """
    unrolled = (compute.unroll_layers or layers) >= layers

    def leaf(matrix: bool, names: tuple[str, ...], split: P) -> bool:
        return unrolled and matrix and names[0] == "layers" and split[0] != "data"

    return jax.tree.map(leaf, weight_decay_mask(params), axes, storage)
